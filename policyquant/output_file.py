"""Writing a file so that it appears whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from policyquant.errors import PolicyQuantError


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file through a temporary one beside it, replacing what was there.

    Raises:
        PolicyQuantError: it cannot be written; what was there is still there.
    """
    target = Path(path)
    temporary = target.parent / f".{target.name}.{os.getpid()}.tmp"
    try:
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        # Exclusive, so that a link put there by somebody else is never followed.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            temporary.replace(target)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise PolicyQuantError(f"{path}: cannot be written: {reason}") from None
