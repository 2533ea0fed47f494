"""Units: what is decided about. A unit is a part of a layer set, with all its members in order."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from policyquant.inventory.layers import Indices, LayerSet, Namespace, Part
from policyquant.plan.ranges import Ranges, from_positions, intersection


@dataclass(eq=False)
class Unit:
    """One part of one layer set. Its members are numbered 0 to `count - 1` in the order of their indices."""

    number: int
    layer: LayerSet
    part: Part
    _by_positions: dict[tuple[int, ...], dict[Indices, Ranges]] = field(default_factory=dict)

    @cached_property
    def indices(self) -> Sequence[Indices]:
        """Index tuple of each member, sorted; for a part that repeats, the layer's with one more at the end."""
        if not self.part.repeats:
            return self.layer.indices
        return [(*indices, i) for indices in self.layer.indices for i in range(self.part.repeats)]

    @property
    def count(self) -> int:
        """How many members it has."""
        return len(self.layer.indices) * max(1, self.part.repeats)

    @property
    def all(self) -> Ranges:
        """All members."""
        return ((0, self.count),)

    def layer_position(self, member: int) -> int:
        """Position of the layer that the member belongs to among `layer.indices`."""
        return member // max(1, self.part.repeats)

    def members_of_layer(self, position: int) -> tuple[int, int]:
        """Start and stop of the members that belong to the layer at `position` of `layer.indices`."""
        size = max(1, self.part.repeats)
        return position * size, (position + 1) * size

    def layer_ranges(self, ranges: Ranges) -> Ranges:
        """The layers (positions in `layer.indices`) that members in `ranges` belong to."""
        size = max(1, self.part.repeats)
        if size == 1:
            return ranges
        return tuple((start // size, (stop - 1) // size + 1) for start, stop in ranges)

    def by_key(self, positions: tuple[int, ...]) -> dict[Indices, Ranges]:
        """Members by the value of their indices at `positions`."""
        result = self._by_positions.get(positions)
        if result is None:
            self._by_positions[positions] = result = dict(self._group(positions))
        return result

    def _group(self, positions: tuple[int, ...]) -> Iterator[tuple[Indices, Ranges]]:
        indices = self.indices
        length = len(positions)
        if not length:
            yield (), self.all
        elif positions == tuple(range(length)):
            # Members are sorted, so those that begin alike are neighbours: jump from one run to the next.
            start = 0
            while start < len(indices):
                key = indices[start][:length]
                stop = bisect_right(indices, (*key, float("inf")), start)
                yield key, ((start, stop),)
                start = stop
        else:
            groups: dict[Indices, list[int]] = {}
            for member, values in enumerate(indices):
                groups.setdefault(tuple(values[p] for p in positions), []).append(member)
            for key, members in groups.items():
                yield key, from_positions(members)

    def select(self, constraints: Sequence[tuple[int, frozenset[int]]]) -> Ranges:
        """Members whose index at each given position is one of the given values."""
        if not constraints:
            return self.all
        result: Ranges | None = None
        for position, values in constraints:
            groups = self.by_key((position,))
            if len(values) <= len(groups):
                hits = [groups[key] for v in values if (key := (v,)) in groups]
            else:
                hits = [ranges for (v,), ranges in groups.items() if v in values]
            reached = _merged(hits)
            result = reached if result is None else intersection(result, reached)
            if not result:
                return ()
        return result or ()

    def names(self, namespace: Namespace, member: int) -> list[str]:
        """All names of one member in a namespace, its own first."""
        indices = self.indices[member]
        return [form.fill(indices) for form in self.part.names.get(namespace, ())]

    def name(self, member: int) -> str:
        """The member's own checkpoint name: the part's if it has one, else the layer's."""
        return self.names("checkpoint", member)[0]

    def find(self, indices: Indices) -> int | None:
        """The member with exactly these indices."""
        position = bisect_left(self.indices, indices)
        if position < len(self.indices) and self.indices[position] == indices:
            return position
        return None


def _merged(hits: Iterable[Ranges]) -> Ranges:
    result: list[tuple[int, int]] = []
    for start, stop in sorted(r for ranges in hits for r in ranges):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(stop, result[-1][1]))
        else:
            result.append((start, stop))
    return tuple(result)


def units_of(sets: Sequence[LayerSet]) -> list[Unit]:
    """The units of an inventory, in its order."""
    return [
        Unit(number, layer, part)
        for number, (layer, part) in enumerate((layer, part) for layer in sets for part in layer.parts)
    ]
