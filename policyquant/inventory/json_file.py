"""JSON files that come with a model: read whole, bounded in size and in what they can unfold to, never trusted.

`config.json` is read as widely as the tools that write it do (a byte order mark, NaN, Infinity); what no reader agrees
on (duplicate keys, lone surrogates) is reported.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from policyquant.errors import Location, SourceError
from policyquant.inventory.echo import path_shown, quoted

MOST_BYTES: Final = 128 * 1024 * 1024
"""Of one JSON text. The largest index in public use (Kimi-K2, 139,583 tensors) has 14 MB."""

_MOST_WIDE_BYTES: Final = 32 * 1024 * 1024
"""Of a text that is not all ASCII: one rare character makes Python use four bytes for each."""

MOST_VALUES: Final = 4_000_000
"""Of one JSON text. Python needs up to some 200 bytes for a value that took three bytes of text; Kimi-K2 with shapes
has 1.1 million values."""


_MOST_DUPLICATES: Final = 6
"""Of repeated keys that are told; a text may have 100,000s."""

_MOST_DIGITS: Final = 4300
"""Of an integer: Python refuses to read longer ones, as that takes the square of their length."""


class DuplicateKey(NamedTuple):
    """A key that an object has twice."""

    key: str
    location: Location


def read_file(path: str, most: int = MOST_BYTES, label: str | None = None) -> bytes:
    """The content of a regular file.

    Args:
        path: Where it lies.
        most: How many bytes it may have.
        label: What to call it in errors; None: its path.

    Raises:
        SourceError: there is no such file, it is no regular file, cannot be read, or has more than `most` bytes.
    """
    label = path_shown(path) if label is None else label
    with open_regular(path, label) as descriptor:
        size = os.fstat(descriptor).st_size
        if size > most:
            raise SourceError(f"{label}: {size:,} bytes; expected at most {most:,}")
        with os.fdopen(os.dup(descriptor), "rb") as file:
            data = file.read(most + 1)
    if len(data) > most:
        raise SourceError(f"{label}: more than {most:,} bytes")
    return data


@contextlib.contextmanager
def open_regular(path: str, label: str) -> Iterator[int]:
    """A descriptor of a regular file. A pipe or a device is refused before it could block or never end.

    Raises:
        SourceError: there is no such file, it is no regular file, or it cannot be read.
    """
    try:
        # Without O_NONBLOCK, opening a pipe that nobody writes to would wait for ever.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError:
        raise SourceError(f"{label}: no such file") from None
    except (OSError, ValueError) as error:
        raise unreadable(label, error) from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise SourceError(f"{label}: not a regular file")
        try:
            yield descriptor
        except OSError as error:
            raise unreadable(label, error) from None
    finally:
        os.close(descriptor)


def unreadable(label: str, error: OSError | ValueError) -> SourceError:
    """What to raise when the system refuses a path. A ValueError is about a path that none can be."""
    reason = error.strerror if isinstance(error, OSError) else None
    return SourceError(f"{label}: cannot be read: {reason or 'no file has such a name'}")


def file_status(path: str, label: str | None = None) -> os.stat_result | None:
    """What the system knows of a file or directory; None if there is none, or only a link whose target is gone.

    Raises:
        SourceError: the system refuses to tell: a name that is too long, a directory that may not be entered.
    """
    try:
        return os.stat(path)  # noqa: PTH116  (a `Path` would hide some of these errors, in some versions)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise unreadable(path_shown(path) if label is None else label, error) from None


def parse_json(
    data: bytes, file: str, *, most_values: int = MOST_VALUES, duplicates: list[DuplicateKey] | None = None
) -> object:
    """The value of a JSON text.

    Args:
        data: UTF-8, with or without a byte order mark.
        file: What to call the text in errors.
        most_values: How many values it may hold.
        duplicates: Gets the first few keys that some object has twice, the last of which holds; None makes them an
            error.

    Raises:
        SourceError: with `file:line:column`, if `data` is not such a text.
    """
    if len(data) > _MOST_WIDE_BYTES and (not data.isascii() or b"\\u" in data):
        raise SourceError(f"{file}: more than {_MOST_WIDE_BYTES:,} bytes, and not all of them ASCII characters")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8", "replace")
        raise SourceError(f"{_place(file, before, len(before))}: not UTF-8") from None
    if text.count(",") + text.count("[") + text.count("{") > most_values:
        raise SourceError(f"{file}: more than {most_values:,} values")
    if text.count('"') > 2 * most_values:
        raise SourceError(f"{file}: more than {most_values:,} strings")
    repeated: set[str] = set()
    try:
        value: object = json.loads(text, object_pairs_hook=_object_builder(repeated))
        lone_surrogate = "\\u" in text and _has_lone_surrogate(value)
    except json.JSONDecodeError as error:
        raise SourceError(_explain(text, file, error)) from None
    except RecursionError:
        raise SourceError(f"{file}: nested too deeply") from None
    except ValueError:
        place = _long_number(text, file)
        raise SourceError(f"{place}: an integer of more than {_MOST_DIGITS:,} digits") from None
    if lone_surrogate:
        raise SourceError(f"{file}: a string has half of a surrogate pair (\\ud800 to \\udfff), which is no character")
    if repeated:
        found = _find_duplicates(text, file)
        if duplicates is None:
            first = found[0]
            raise SourceError(f"{first.location}: the key {quoted(first.key)} stands twice in one object")
        duplicates.extend(found)
    return value


def _object_builder(repeated: set[str]) -> Callable[[list[tuple[str, object]]], dict[str, object]]:
    def build(pairs: list[tuple[str, object]]) -> dict[str, object]:
        result = dict(pairs)
        if len(result) != len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    repeated.add(key)
                seen.add(key)
        return result

    return build


# Unrolled, since alternatives inside a loop would need memory for every character of a long string.
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]:,]', re.DOTALL)
_TOKEN_OR_NUMBER = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|-?[0-9]+', re.DOTALL)


def _long_number(text: str, file: str) -> Location:
    """The place of the first integer in a JSON text that is too long to be read."""
    for token in _TOKEN_OR_NUMBER.finditer(text):
        if token.end() - token.start() > _MOST_DIGITS and token.group()[0] not in '"{[':
            return _place(file, text, token.start())
    return Location(file)


def _find_duplicates(text: str, file: str) -> list[DuplicateKey]:
    """The first places of repeated keys in a text that is known to be JSON."""
    found: list[DuplicateKey] = []
    told: set[str] = set()
    objects: list[set[str] | None] = []  # One entry for each open bracket; None for a list's.
    key_next = False
    for token in _TOKEN.finditer(text):
        mark = token.group()
        if mark in "{[":
            objects.append(set() if mark == "{" else None)
            key_next = mark == "{"
        elif mark in "}]":
            objects.pop()
            key_next = False
        elif mark == ",":
            key_next = objects[-1] is not None
        elif key_next and mark != ":":
            key_next = False
            keys = objects[-1]
            key = json.loads(mark)
            if keys is not None:
                if key in keys and key not in told:
                    told.add(key)
                    found.append(DuplicateKey(key, _place(file, text, token.start())))
                    if len(found) == _MOST_DUPLICATES:
                        break
                keys.add(key)
    return found


def _has_lone_surrogate(value: object) -> bool:
    """Whether some string could not be encoded again: `json.loads` lets half a pair through, printing it fails."""
    left = [value]
    try:
        while left:
            each = left.pop()
            if isinstance(each, str):
                if not each.isascii():
                    each.encode()
            elif isinstance(each, dict):
                left += each.keys()
                left += each.values()
            elif isinstance(each, list):
                left += each
    except UnicodeEncodeError:
        return True
    return False


def _place(file: str, text: str, offset: int) -> Location:
    line = text.count("\n", 0, offset) + 1
    return Location(file, line, offset - text.rfind("\n", 0, offset))


def _explain(text: str, file: str, error: json.JSONDecodeError) -> str:
    place = _place(file, text, error.pos)
    if not text.strip():
        return f"{file}: empty; expected JSON"
    before = text[: error.pos].rstrip()
    if before.endswith(",") and text[error.pos : error.pos + 1] in ("}", "]"):
        return f"{place}: a comma before {text[error.pos]!r}; JSON has no trailing commas"
    if error.msg.startswith("Illegal trailing comma"):  # Python 3.13 points at the comma itself.
        return f"{place}: {error.msg.lower()}; JSON has no trailing commas"
    rest = text[error.pos : error.pos + 20].partition("\n")[0]
    return f"{place}: not JSON: {error.msg.lower()}" + (f", found {rest!r}" if rest else ", found the end of the file")
