"""The indices of many layers as a tree in which equal branches are one object.

60 blocks of 384 experts are 23,040 index tuples, but one node of 60 values above one node of 384: what is asked of a
branch is answered once for all blocks that have it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from policyquant.inventory.layers import Indices
from policyquant.inventory.ranges import Ranges

Box = tuple[tuple[int, ...], ...]
"""For each index the values it takes: all their combinations are meant."""


class IndexTree:
    """All index tuples that begin alike, by their next index. Members are numbered in order of their tuples."""

    __slots__ = ("below", "count", "starts", "values")

    def __init__(self, values: tuple[int, ...], below: tuple[IndexTree, ...]) -> None:
        self.values = values
        self.below = below
        """For each value the tree of what follows it; empty if nothing does."""
        sizes = [tree.count for tree in below] or [1] * len(values)
        self.starts: list[int] = list(accumulate(sizes, initial=0))
        """For each value the number of the first member that has it; at the end, how many members there are."""
        self.count: int = self.starts[-1] if values else 1

    @staticmethod
    def of(indices: Sequence[Indices]) -> IndexTree:
        """The tree of sorted, distinct index tuples of one length."""
        columns = list(zip(*indices, strict=True))
        return _Builder(columns).build(0, 0, len(indices)) if columns else IndexTree((), ())

    def select(self, wanted: Mapping[int, frozenset[int]]) -> Ranges:
        """Members whose index at each position in `wanted` is one of the values given for it."""
        if not wanted:
            return ((0, self.count),)
        return _select(self, wanted, 0, max(wanted), {})

    def boxes(self, ranges: Ranges) -> tuple[Box, ...]:
        """The index tuples of members as few boxes, exactly."""
        return _boxes(self, ranges, {}) if self.values else ((),)

    def nodes(self, depth: int) -> Iterator[tuple[Indices, IndexTree]]:
        """The trees below `depth` indices, each with those indices."""
        if depth == 0:
            yield (), self
            return
        for value, tree in zip(self.values, self.below, strict=True):
            for rest, node in tree.nodes(depth - 1):
                yield (value, *rest), node


class _Builder:
    """Builds a tree from the columns of a table of indices."""

    def __init__(self, columns: Sequence[tuple[int, ...]]) -> None:
        self.columns = columns
        self.known: dict[tuple[tuple[int, ...], tuple[int, ...]], IndexTree] = {}

    def build(self, level: int, start: int, stop: int) -> IndexTree:
        column = self.columns[level]
        if level == len(self.columns) - 1:
            return self._shared(column[start:stop], ())
        values = []
        below = []
        while start < stop:
            end = bisect_right(column, column[start], start, stop)
            values.append(column[start])
            below.append(self.build(level + 1, start, end))
            start = end
        return self._shared(tuple(values), tuple(below))

    def _shared(self, values: tuple[int, ...], below: tuple[IndexTree, ...]) -> IndexTree:
        key = values, tuple(map(id, below))
        tree = self.known.get(key)
        if tree is None:
            self.known[key] = tree = IndexTree(values, below)
        return tree


def _select(
    tree: IndexTree, wanted: Mapping[int, frozenset[int]], level: int, deepest: int, known: dict[int, Ranges]
) -> Ranges:
    result = known.get(id(tree))
    if result is None:
        found: list[tuple[int, int]] = []
        for position in _positions(tree, wanted.get(level)):
            offset = tree.starts[position]
            if level == deepest:
                inside: Ranges = ((0, tree.starts[position + 1] - offset),)
            else:
                inside = _select(tree.below[position], wanted, level + 1, deepest, known)
            for start, stop in inside:
                if found and found[-1][1] == start + offset:
                    found[-1] = (found[-1][0], stop + offset)
                else:
                    found.append((start + offset, stop + offset))
        known[id(tree)] = result = tuple(found)
    return result


def _positions(tree: IndexTree, values: frozenset[int] | None) -> Iterable[int]:
    """Where in the tree the wanted values stand."""
    if values is None:
        return range(len(tree.values))
    if len(values) > len(tree.values) // 8:
        return [position for position, value in enumerate(tree.values) if value in values]
    positions = sorted(bisect_left(tree.values, value) for value in values)
    return [position for position in positions if position < len(tree.values) and tree.values[position] in values]


def _boxes(tree: IndexTree, ranges: Ranges, known: dict[tuple[int, Ranges], tuple[Box, ...]]) -> tuple[Box, ...]:
    if not tree.below:
        return ((tuple(value for start, stop in ranges for value in tree.values[start:stop]),),)
    inside: dict[int, list[tuple[int, int]]] = {}
    for start, stop in ranges:
        position = bisect_right(tree.starts, start) - 1
        while position < len(tree.values) and tree.starts[position] < stop:
            first, last = tree.starts[position], tree.starts[position + 1]
            inside.setdefault(position, []).append((max(start, first) - first, min(stop, last) - first))
            position += 1
    alike: dict[tuple[Box, ...], list[int]] = {}
    for position, pieces in inside.items():
        below = tree.below[position]
        key = id(below), tuple(pieces)
        boxes = known.get(key)
        if boxes is None:
            known[key] = boxes = _boxes(below, key[1], known)
        alike.setdefault(boxes, []).append(tree.values[position])
    return tuple((tuple(values), *box) for boxes, values in alike.items() for box in boxes)
