"""A policy's file → its bytes and its text, without ever reading more than a policy can be."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from policyquant.errors import Location, PolicyError, Problem, did_you_mean

MOST_BYTES: Final = 16 * 2**20
"""A policy of 10,000 rules has one megabyte."""

_MOST_NAMES: Final = 1_000
"""Files of a folder among which the nearest spelling is looked for."""

_BYTE_ORDER_MARKS: Final = (
    (b"\xff\xfe\0\0", "UTF-32"),
    (b"\0\0\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)
"""The longer first: one of UTF-16 begins one of UTF-32."""

_GZIP: Final = b"\x1f\x8b"


def read_bytes(path: str, said_at: Location | None, also: Sequence[str] = ()) -> bytes:
    """The bytes of a policy's file.

    Args:
        path: the file.
        said_at: where another file names it (`extends`); None if a person did.
        also: what else could have been meant, for the nearest spelling.

    Raises:
        PolicyError: there is no such file, it is a directory or a device, cannot be read, or is larger than any policy.
    """
    location = said_at or Location(path)
    name = f": {path!r}" if said_at else ""
    try:
        # Without O_NONBLOCK a pipe would keep us waiting for a writer.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError:
        word = Path(path).name
        hint = did_you_mean(word, also) or did_you_mean(word, _names_in(Path(path).parent))
        what = "no such file or preset" if also else "no such file"
        raise _problem(location, f"{what}{name}{hint}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise _problem(location, f"cannot be read{name}: {reason}") from None
    try:
        mode = os.fstat(handle).st_mode
        if not stat.S_ISREG(mode):
            what = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
            raise _problem(location, f"expected a policy's file, found {what}{name}")
        data = _read_at_most(handle, MOST_BYTES + 1)
    except OSError as error:
        raise _problem(location, f"cannot be read{name}: {error.strerror}") from None
    finally:
        os.close(handle)
    if len(data) > MOST_BYTES:
        raise _problem(location, f"larger than {MOST_BYTES // 2**20} MiB, which no policy is{name}")
    return data


def _read_at_most(handle: int, most: int) -> bytes:
    pieces = []
    while most > 0 and (piece := os.read(handle, min(most, 2**20))):
        pieces.append(piece)
        most -= len(piece)
    return b"".join(pieces)


def decode(data: bytes, file: str) -> str:
    """UTF-8 text, with or without a byte order mark.

    Raises:
        PolicyError: it is another encoding, or compressed, or there is no text.
    """
    if data.startswith(_GZIP):
        raise _problem(Location(file), "compressed with gzip, as plans and saved inventories may be; a policy is text")
    for mark, name in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            raise _problem(Location(file, 1, 1), f"the file is {name}; save it as UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8-sig")
        line_start = before.rfind("\n") + 1
        place = Location(file, before.count("\n") + 1, len(before) - line_start + 1)
        raise _problem(place, f"the byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8") from None
    if not text.strip():
        raise _problem(Location(file, 1, 1), "the file is empty; expected a policy")
    return text


def _names_in(folder: Path) -> list[str]:
    try:
        return [path.name for path in islice(folder.iterdir(), _MOST_NAMES)]
    except OSError:
        return []


def _problem(location: Location, message: str) -> PolicyError:
    return PolicyError([Problem(location, message)])
