"""Exit statuses of the command line."""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """What a process tells the shell."""

    FINE = 0
    NO = 1
    """The answer is "no": findings at error level, a failed expectation, a difference, nothing found."""
    NOT_UNDERSTOOD = 2
    """The request could not be understood or carried out: bad policy, no such file."""
    INTERRUPTED = 130
    """Ctrl-C: 128 and the number of the signal, as shells have it."""
    PIPE_CLOSED = 141
    """Whoever read our output has gone, as in `| head`; likewise."""
