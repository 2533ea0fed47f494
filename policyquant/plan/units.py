"""Units: what is decided about. A unit is a part of a layer set, with all its members in order."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from policyquant.inventory.architectures.vocabulary import place
from policyquant.inventory.index_tree import IndexTree
from policyquant.inventory.layers import Indices, LayerSet, Namespace, Part
from policyquant.inventory.ranges import Ranges, from_positions, union


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
    def shape(self) -> tuple[int, ...] | None:
        """Logical shape of a member's weight, or of the layer's if its part has none of its own told."""
        return self.layer.shape if self.part.shape is None else self.part.shape

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

    @cached_property
    def _block_form(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Which indices name the block that a member stands in, and their offsets in the canonical name."""
        form = next(iter(self.part.names.get("canonical", ())), None)
        count = 0 if form is None else place(form.template).block_indices
        return ((), ()) if form is None else (form.positions[:count], form.offsets[:count])

    def block_of(self, indices: Indices) -> Indices:
        """The canonical indices of the block in which the member with these indices stands; () outside the blocks."""
        return tuple(indices[position] - offset for position, offset in zip(*self._block_form, strict=True))

    @cached_property
    def blocks(self) -> dict[Indices, Ranges]:
        """Members by the block that they stand in."""
        positions, offsets = self._block_form
        return {
            tuple(value - offset for value, offset in zip(key, offsets, strict=True)): ranges
            for key, ranges in self.by_key(positions).items()
        }

    def in_block(self, block: Indices) -> Ranges:
        """The members that stand in a block, or outside the blocks."""
        return self.blocks.get(block) or self.blocks.get((), ())

    @cached_property
    def tree(self) -> IndexTree:
        """The same indices as a tree."""
        return IndexTree.of(self.indices)

    def select(self, constraints: Mapping[int, frozenset[int]]) -> Ranges:
        """Members whose index at each given position is one of the given values."""
        return self.tree.select(constraints) if constraints else self.all

    def names(self, namespace: Namespace, member: int) -> list[str]:
        """All names of one member in a namespace, its own first."""
        indices = self.indices[member]
        return [form.fill(indices) for form in self.part.names.get(namespace, ())]

    def name(self, member: int) -> str:
        """The member's own checkpoint name: the part's if it has one, else the layer's."""
        return self.names("checkpoint", member)[0]


def units_of(sets: Sequence[LayerSet]) -> list[Unit]:
    """The units of an inventory, in its order."""
    return [
        Unit(number, layer, part)
        for number, (layer, part) in enumerate((layer, part) for layer in sets for part in layer.parts)
    ]


Reach = dict[int, Ranges]
"""Some members of several units, by the unit's number."""


def add_members(reach: Reach, unit: int, ranges: Ranges) -> None:
    """Add members of one unit."""
    before = reach.get(unit)
    reach[unit] = ranges if before is None else union(before, ranges)
