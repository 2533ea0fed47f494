"""Sorted, disjoint half-open ranges of positions: which members of a layer set a rule reaches.

Members are sorted by their indices, so what a rule reaches (one block, all experts of a block, everything) is nearly
always a few ranges, whatever the number of experts.
"""

from __future__ import annotations

from collections.abc import Iterable

Ranges = tuple[tuple[int, int], ...]
"""`((0, 4), (28, 32))`: positions 0 to 3 and 28 to 31."""


def from_positions(positions: Iterable[int]) -> Ranges:
    """Ranges that hold the given positions, which must be ascending."""
    result: list[tuple[int, int]] = []
    start = stop = -1
    for position in positions:
        if position == stop:
            stop += 1
        else:
            if stop > start:
                result.append((start, stop))
            start, stop = position, position + 1
    if stop > start:
        result.append((start, stop))
    return tuple(result)


def union(first: Ranges, second: Ranges) -> Ranges:
    """Positions in either."""
    if not first or not second or first == second:
        return first or second
    if first[-1][1] < second[0][0]:
        return (*first, *second)
    result: list[tuple[int, int]] = []
    for start, stop in sorted((*first, *second)):
        if result and start <= result[-1][1]:
            if stop > result[-1][1]:
                result[-1] = (result[-1][0], stop)
        else:
            result.append((start, stop))
    return tuple(result)


def difference(first: Ranges, second: Ranges) -> Ranges:
    """Positions in `first` and not in `second`."""
    result: list[tuple[int, int]] = []
    remaining = list(second)
    for start, stop in first:
        for cut_start, cut_stop in remaining:
            if cut_stop <= start or cut_start >= stop:
                continue
            if cut_start > start:
                result.append((start, cut_start))
            start = cut_stop
            if start >= stop:
                break
        if start < stop:
            result.append((start, stop))
    return tuple(result)


def intersection(first: Ranges, second: Ranges) -> Ranges:
    """Positions in both."""
    return difference(first, difference(first, second))


def count(ranges: Ranges) -> int:
    """How many positions they hold."""
    return sum(stop - start for start, stop in ranges)
