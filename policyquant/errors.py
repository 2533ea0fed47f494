"""What can go wrong with a request, in a form a person can act on.

Every error raised on purpose derives from `PolicyQuantError`; the command line prints it without a traceback and exits
with status 2. Findings about a well-formed request (`policyquant.findings`) are not exceptions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple


class Location(NamedTuple):
    """Where a piece of text stands. Lines and columns count from 1; both are None for input that has no text."""

    file: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        if self.line is None:
            return self.file
        return f"{self.file}:{self.line}:{self.column}"


class PolicyQuantError(Exception):
    """The request could not be understood or carried out. The message is complete and meant for a person."""


class SourceError(PolicyQuantError):
    """A model source (checkpoint, index, saved inventory, repository) or plan file is missing, damaged or hostile."""


class BuildError(PolicyQuantError):
    """A model could not be built: its construction, its names or its source do not allow it. Lists every reason."""


class Problem(NamedTuple):
    """One thing wrong with a policy: where, what was found, what was expected."""

    location: Location
    message: str

    def __str__(self) -> str:
        return f"{self.location}: {self.message}"


class PolicyError(PolicyQuantError):
    """A policy is not valid. Carries every problem that was found, each with its place."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


_LONGEST_WORD: Final = 200
"""Comparing takes the square of a word's length; nobody mistypes a longer one."""


def nearest(word: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The known spellings closest to `word`, best first; empty if none is close."""
    if len(word) > _LONGEST_WORD:
        return []
    import difflib

    spellings = list(known)
    # A wrong case, or a name cut short (`int4` for `int4_weight_only`), is nearer than any count of letters tells.
    folded = word.casefold()
    same = [spelling for spelling in spellings if spelling.casefold() == folded]
    longer = [s for s in spellings if len(word) > 2 and s.casefold().startswith(folded) and s not in same]
    close = difflib.get_close_matches(word, spellings, n=count, cutoff=0.6)
    return list(dict.fromkeys((*same, *sorted(longer, key=len), *close)))[:count]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`"; did you mean 'x'?"`, or the empty string when nothing known is close to `word`."""
    close = nearest(word, known, count=1)
    return f"; did you mean {close[0]!r}?" if close else ""
