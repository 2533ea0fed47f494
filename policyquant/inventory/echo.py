"""Found names, paths and values as messages show them: on one line, of bounded length, and always text."""

from __future__ import annotations

import re
from typing import Final

_LONGEST_NAME: Final = 120
"""The longest names of layers in public use have some 90 characters."""

_LONGEST_VALUE: Final = 60

_LONGEST_PATH: Final = 400

_SURROGATES = re.compile("[\ud800-\udfff]")


def as_text(path: str) -> str:
    """A path as text: bytes that are not UTF-8, which Python keeps as lone surrogates, become U+FFFD."""
    return path if path.isascii() else _SURROGATES.sub("\ufffd", path)


def path_shown(path: str) -> str:
    """A path for a message. Line breaks and other control characters are escaped."""
    return _cut(path, _LONGEST_PATH)


def name_shown(name: str) -> str:
    """A name of a file, a tensor or a layer for a message, without quotation marks."""
    return _cut(name, _LONGEST_NAME)


def quoted(name: str) -> str:
    """The same in quotation marks, as Python writes a string."""
    if len(name) > _LONGEST_NAME:
        return f"{as_text(name[: _LONGEST_NAME - 3])!r}..."
    return repr(as_text(name))


def value_shown(value: object) -> str:
    """A found value, as Python writes it, however large it is."""
    if isinstance(value, str):
        text = repr(value[:_LONGEST_VALUE])
        cut = len(value) > _LONGEST_VALUE
    else:
        try:
            text = repr(value)
        except (RecursionError, ValueError):  # ValueError: an integer of thousands of digits.
            return f"a {type(value).__name__} that is too large to show"
        cut = False
    if len(text) > _LONGEST_VALUE or cut:
        text = f"{text[: _LONGEST_VALUE - 3]}..."
    return as_text(text)


def count_shown(count: int) -> str:
    """A count of bytes with its digits grouped; one that no file has, by how large it is."""
    return f"{count:,}" if count < 1 << 64 else "more than 2^64"


def _cut(text: str, most: int) -> str:
    if len(text) > most:
        text = text[: most - 3] + "..."
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        mark if mark.isprintable() else "\ufffd" if _SURROGATES.match(mark) else repr(mark)[1:-1] for mark in text
    )
