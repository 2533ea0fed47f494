"""Writing a file so that it appears whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path

from policyquant.errors import PolicyQuantError


def write_whole(path: str | os.PathLike[str], data: bytes, *, made_from: Iterable[str] = ()) -> None:
    """Write a file through a temporary one beside it, replacing what was there.

    A link is followed and stays one; a file that was there keeps its permissions. What is no file (a device, a pipe)
    is written into, for it cannot be replaced. `made_from` are the sources of the data, which must not be overwritten.

    Raises:
        PolicyQuantError: it cannot be written, or is one of its own sources; what was there is still there.
    """
    try:
        target = _target(path)
        for source in made_from:
            if _same_file(target, source):
                raise PolicyQuantError(f"{path}: not written: it is what this was made from; choose another name")
        mode = target.stat().st_mode if target.exists() else None
        if mode is not None and not stat.S_ISREG(mode):
            with target.open("wb") as file:
                file.write(data)
        else:
            _replace(target, data, mode)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise PolicyQuantError(f"{path}: cannot be written: {reason}") from None


def _target(path: str | os.PathLike[str]) -> Path:
    target = Path(os.path.realpath(path))
    if target.is_dir() or os.fspath(path).endswith(os.sep):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    return target


def _same_file(target: Path, source: str) -> bool:
    try:
        return target.is_file() and target.samefile(source)
    except (OSError, ValueError):  # A source that is no path: a preset, a repository, a module.
        return False


def _replace(target: Path, data: bytes, mode: int | None) -> None:
    # A random name, since another process may write the same file; short, since the target's may be as long as can be.
    temporary = target.parent / f".{secrets.token_hex(8)}.tmp"
    # Exclusive, so that a link put there by somebody else is never followed.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        if mode is not None:
            temporary.chmod(stat.S_IMODE(mode))
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
