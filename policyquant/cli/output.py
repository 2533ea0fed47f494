"""Where text goes: results to standard output, messages to standard error.

Everything printed passes through here, so that control characters in a name out of somebody's file never reach a
terminal as such, and a closed pipe or an encoding without a character is dealt with once.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, TextIO

from policyquant.cli.terminal import Style, paint
from policyquant.errors import PolicyQuantError


@dataclass(slots=True)
class Settings:
    """What the global options say."""

    quiet: bool = False
    verbose: bool = False


settings: Final = Settings()
"""Of the command that runs."""

_REORDERING: Final = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Bidirectional controls: they reorder the text around them, so that a line reads as another one."""

_ESCAPES: Final = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in (*range(0x20), 0x7F, *range(0x80, 0xA0), 0x2028, 0x2029, *_REORDERING)
}
_ESCAPES_IN_TEXT: Final = {code: text for code, text in _ESCAPES.items() if code != 0x0A}


def one_line(text: str) -> str:
    """Text with everything that would end the line, move the cursor or colour what follows written as an escape."""
    return text if text.isprintable() else text.translate(_ESCAPES)


def prepare() -> None:
    """Make the streams able to print any name: what the encoding lacks appears as an escape."""
    settings.quiet = settings.verbose = False
    for stream in (sys.stdout, sys.stderr):
        _reconfigure(stream, errors="backslashreplace")


def _reconfigure(stream: TextIO | None, **changes: str) -> None:
    reconfigure: Any = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(**changes)


def write(text: str) -> None:
    """Print a result, which may have several lines."""
    write_styled(text.translate(_ESCAPES_IN_TEXT))


def write_styled(text: str) -> None:
    """Print text whose colour codes are our own, and whose names went through `one_line`."""
    _put(sys.stdout, [text])


def write_json(chunks: Iterable[str]) -> None:
    """Print JSON text: always UTF-8, and a lone surrogate as the escape that JSON has for it."""
    _reconfigure(sys.stdout, encoding="utf-8", errors="backslashreplace")
    _put(sys.stdout, chunks)


def message(text: str, *, label: str = "", style: Style = "") -> None:
    """Say something on standard error, after the results so far; `label` is set off in colour."""
    _put(sys.stdout, [], flush=True)
    _put(sys.stderr, [f"{paint(label, style, sys.stderr)}{text.translate(_ESCAPES_IN_TEXT)}\n"])


def error(text: str) -> None:
    """Say why a request cannot be carried out."""
    message(f" {text}", label="error:", style="red")


def note(text: str) -> None:
    """Say something that `--quiet` leaves out."""
    if not settings.quiet:
        message(text)


def flush() -> None:
    """Write out what is buffered.

    Raises:
        BrokenPipeError: nobody reads any more.
        PolicyQuantError: the results cannot be written, for instance because the disk is full.
    """
    for stream in (sys.stdout, sys.stderr):
        _put(stream, [], flush=True)


def _put(stream: TextIO | None, chunks: Iterable[str], *, flush: bool = False) -> None:
    if stream is None or stream.closed:
        return
    try:
        for chunk in chunks:
            stream.write(chunk)
        if flush:
            stream.flush()
    except BrokenPipeError:
        raise
    except OSError as failure:
        _discard(stream)
        raise PolicyQuantError(f"the output cannot be written: {failure.strerror}") from None


def abandon() -> None:
    """Forget what is still buffered, so that the interpreter does not complain about it when it exits."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            try:
                stream.flush()
            except OSError:
                _discard(stream)


def _discard(stream: TextIO) -> None:
    with contextlib.suppress(OSError, ValueError):
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, stream.fileno())
        os.close(sink)
