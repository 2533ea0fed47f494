"""Many problems as one message. Those that differ only in the indices of their layers are one line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from policyquant.inventory.collapse import is_index
from policyquant.inventory.index_tree import Box, IndexTree
from policyquant.inventory.layers import Indices
from policyquant.inventory.spans import index_ranges

_WORD: Final = re.compile(r"(?<![\w./\\-])[\w-]+(?:\.[\w-]+)*(?![\w/\\])")
"""A word of a sentence, or a dotted name; no part of a path."""

_EXPERT: Final = ", expert "
"""What stands before the index of an expert of a layer that holds several."""

_LAYER: Final = re.compile(r"[\w{},-]*\.[\w.{},-]+(?:, (?:expert )?[^\s:]+)*: ")
"""The layer, with one of its parts, that a line begins with."""

_LETTER: Final = re.compile(r"(?:^|\.)[^\W\d]")
"""What a name has somewhere, and a decimal number has not."""


def listed(title: str, problems: Iterable[str], most: int = 50) -> str:
    """A title with the number of problems, and one line for each, as `folded` has them."""
    lines = folded(problems)
    shown = [f"  {line}" for line in lines[:most]]
    if len(lines) > most:
        shown.append(f"  and {len(lines) - most:,} more")
    return "\n".join([f"{title}: {len(lines):,} problem{'' if len(lines) == 1 else 's'}", *shown])


def folded(problems: Iterable[str]) -> list[str]:
    """One line for each cause: repeated lines are told once, those that differ only in the indices of layers are one
    line about `blocks.{0..31}.up_proj`, and what is said of several layers in the same words, after a colon, is said
    once. They stand in the order in which their first ones come."""
    alike: dict[tuple[str, ...], dict[Indices, None]] = {}
    for line in problems:
        pieces, indices = _taken_apart(line)
        alike.setdefault(pieces, {})[indices] = None
    by_words: dict[str, list[str]] = {}
    for line in [line for pieces, members in alike.items() for line in _lines(pieces, list(members))]:
        layer = _LAYER.match(line)
        place = layer.group() if layer else ""
        by_words.setdefault(line[len(place) :], []).append(place.removesuffix(": "))
    return [f"{_joined(places)}: {words}" if places[0] else words for words, places in by_words.items()]


def _joined(places: Iterable[str]) -> str:
    """`a; b, q_proj, k_proj`: layers, each with those of its parts that are meant."""
    joined: list[str] = []
    for place in places:
        layer, comma, part = place.rpartition(", ")
        if comma and joined and joined[-1].startswith(f"{layer}, "):
            joined[-1] += f", {part}"
        else:
            joined.append(place)
    return "; ".join(joined)


def _taken_apart(line: str) -> tuple[tuple[str, ...], Indices]:
    """The indices in the names of a line, and the text around them."""
    pieces: list[str] = []
    indices: list[int] = []
    start = 0
    for word in _WORD.finditer(line):
        text, at = word.group(), word.start()
        quoted = line[at - 1 : at] == line[word.end() : word.end() + 1] == "'"
        alone = is_index(text) and (quoted or line.endswith(_EXPERT, 0, at))
        if not (alone or ("." in text and _LETTER.search(text))):
            continue
        for part in text.split("."):
            if is_index(part):
                pieces.append(line[start:at])
                indices.append(int(part))
                start = at + len(part)
            at += len(part) + 1
    return (*pieces, line[start:]), tuple(indices)


def _lines(pieces: Sequence[str], members: Sequence[Indices]) -> Iterator[str]:
    """The lines of all members, as few as there are boxes of their indices."""
    own: list[int] = []
    """Places whose index no earlier one tells."""
    sources: list[tuple[int, int]] = []
    """For each place, which of `own` tells its index, and what is added to that."""
    columns = list(zip(*members, strict=True))
    for place, column in enumerate(columns):
        for number, earlier in enumerate(own):
            added = column[0] - columns[earlier][0]
            if all(value - other == added for value, other in zip(column, columns[earlier], strict=True)):
                sources.append((number, added))
                break
        else:
            sources.append((len(own), 0))
            own.append(place)
    tree = IndexTree.of(sorted([tuple([member[place] for place in own]) for member in members]))
    for box in tree.boxes(((0, tree.count),)):
        yield "".join([*_filled(pieces, sources, box), pieces[-1]])


def _filled(pieces: Sequence[str], sources: Iterable[tuple[int, int]], box: Box) -> Iterator[str]:
    for piece, (number, added) in zip(pieces, sources, strict=False):
        yield piece + index_ranges([value + added for value in box[number]])
