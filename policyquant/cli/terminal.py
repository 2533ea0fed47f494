"""What the streams can show: colours, width, box characters."""

from __future__ import annotations

import os
import sys
from typing import Final, Literal, TextIO

Style = Literal["", "bold", "dim", "red", "yellow", "green", "cyan"]

_CODES: Final[dict[Style, str]] = {
    "bold": "1",
    "dim": "2",
    "red": "1;31",
    "yellow": "33",
    "green": "32",
    "cyan": "36",
}


_USUAL_WIDTH: Final = 80
"""For a terminal that does not tell its own."""


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person sees what is written there."""
    return stream is not None and not stream.closed and stream.isatty()


def has_colours(stream: TextIO | None) -> bool:
    """Whether colours are wanted there: on a terminal that has them, or where FORCE_COLOR says so; never with
    NO_COLOR (https://no-color.org)."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return is_terminal(stream) and os.environ.get("TERM") != "dumb"


def paint(text: str, style: Style, stream: TextIO | None) -> str:
    """Text with colour codes if they are wanted on `stream`."""
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if style and has_colours(stream) else text


def width() -> int | None:
    """Columns of the terminal that results go to; None if they go to a file or a pipe, which have no width."""
    if not is_terminal(sys.stdout):
        return None
    told = os.environ.get("COLUMNS", "")
    if told.isdecimal() and int(told) > 0:
        return int(told)
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or _USUAL_WIDTH
    except (OSError, ValueError):
        return _USUAL_WIDTH


def can_print(text: str) -> bool:
    """Whether standard output's encoding has these characters."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
