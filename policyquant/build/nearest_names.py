"""The nearest spelling of a name among those of a large model, told quickly and not too often."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice
from typing import Final

from policyquant.errors import did_you_mean

_NUMBERS: Final = re.compile(r"(?<![^.])\d+(?![^.])")
"""Parts of a name that are layer or expert indices."""

_MOST_COMPARED: Final = 500
"""Comparing two names takes tens of microseconds, and a model may have 100,000."""

_MOST_HINTS: Final = 60
"""More problems than that have one cause; a message does not list them all either."""


class NearestNames:
    """Names that are known, by their indices: a name that was meant is hardly of another layer."""

    def __init__(self, known: Iterable[str]) -> None:
        self._known = list(known)
        self._by_indices: dict[tuple[str, ...], list[str]] | None = None
        self._hints = 0

    def hint(self, name: str) -> str:
        """`"; did you mean 'x'?"`, or the empty string when nothing near is known or enough was said."""
        if self._hints >= _MOST_HINTS:
            return ""
        self._hints += 1
        if self._by_indices is None:
            self._by_indices = {}
            for each in self._known:
                self._by_indices.setdefault(tuple(_NUMBERS.findall(each)), []).append(each)
        alike = self._by_indices.get(tuple(_NUMBERS.findall(name)), self._known)
        return did_you_mean(name, islice(alike, _MOST_COMPARED))
