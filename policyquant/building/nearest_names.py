"""The nearest spelling of a name among those of a large model, told quickly and not too often."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice
from typing import Final

from policyquant.errors import nearest

_NUMBERS: Final = re.compile(r"(?<![^.])\d+(?![^.])")
"""Parts of a name that are layer or expert indices."""

_MOST_COMPARED: Final = 500
"""Comparing two names takes tens of microseconds, and a model may have 100,000."""

_MOST_COMPARISONS: Final = 60
"""More problems than that, of different layers, have one cause; a message does not list them all either."""


class NearestNames:
    """Names that are known, by their indices: a name that was meant is hardly of another layer."""

    def __init__(self, known: Iterable[str]) -> None:
        self._known = dict.fromkeys(known)
        self._by_indices: dict[tuple[str, ...], list[str]] | None = None
        self._found: dict[tuple[str, bool], str] = {}
        """Template of a name, and whether names of its indices are known → the template of what was found nearest to
        one such name; empty for nothing."""
        self._comparisons = 0

    def hint(self, name: str) -> str:
        """`"; did you mean 'x'?"`, or the empty string when nothing near is known or enough was said.

        Of names that differ only in their indices one is compared, and the others get what it got, with their indices:
        they are then told in one line.
        """
        template, indices = _NUMBERS.sub("#", name), tuple(_NUMBERS.findall(name))
        alike = self._alike(indices)
        key = (template, alike is not None)
        found = self._found.get(key)
        near = None if found is None else _filled(found, indices)
        if near is None or (near and near not in self._known):
            if self._comparisons >= _MOST_COMPARISONS:
                return ""
            self._comparisons += 1
            among = islice(self._known if alike is None else alike, _MOST_COMPARED)
            near = next(iter(nearest(name, among, count=1)), "")
            self._found[key] = _NUMBERS.sub("#", near) if tuple(_NUMBERS.findall(near)) == indices else near
        return f"; did you mean {near!r}?" if near else ""

    def _alike(self, indices: tuple[str, ...]) -> list[str] | None:
        if self._by_indices is None:
            self._by_indices = {}
            for each in self._known:
                self._by_indices.setdefault(tuple(_NUMBERS.findall(each)), []).append(each)
        return self._by_indices.get(indices)


def _filled(template: str, indices: tuple[str, ...]) -> str:
    pieces = template.split("#")
    if len(pieces) != len(indices) + 1:
        return template
    return pieces[0] + "".join(index + piece for index, piece in zip(indices, pieces[1:], strict=True))
