"""A tree of indices answers what the plain list of index tuples would."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyquant.inventory.index_tree import IndexTree
from policyquant.inventory.layers import Indices

WIDTHS = st.integers(1, 3)
TABLES = WIDTHS.flatmap(
    lambda width: st.lists(st.tuples(*[st.integers(0, 4)] * width), min_size=1, max_size=40, unique=True).map(sorted)
)


def test_blocks_with_the_same_experts_share_one_branch() -> None:
    tree = IndexTree.of([(block, expert) for block in range(60) for expert in range(384)])
    assert tree.count == 60 * 384
    assert tree.values == tuple(range(60))
    assert len(set(map(id, tree.below))) == 1


def test_a_layer_that_does_not_repeat_is_one_member() -> None:
    tree = IndexTree.of([()])
    assert tree.count == 1
    assert tree.select({}) == ((0, 1),)
    assert tree.boxes(((0, 1),)) == ((),)


@pytest.mark.parametrize(
    ("wanted", "ranges"),
    [
        ({0: {1}}, ((3, 6),)),
        ({1: {0}}, ((0, 1), (3, 4), (6, 7))),
        ({0: {1, 2}, 1: {1, 2}}, ((4, 6), (7, 9))),
        ({0: {0, 1, 2}}, ((0, 9),)),
        ({0: {7}}, ()),
        ({}, ((0, 9),)),
    ],
)
def test_members_by_the_values_of_their_indices(
    wanted: dict[int, set[int]], ranges: tuple[tuple[int, int], ...]
) -> None:
    tree = IndexTree.of([(block, expert) for block in range(3) for expert in range(3)])
    assert tree.select({position: frozenset(values) for position, values in wanted.items()}) == ranges


@given(TABLES, st.dictionaries(st.integers(0, 2), st.frozensets(st.integers(0, 5), max_size=4)))
def test_selecting_is_filtering(table: list[Indices], wanted: dict[int, frozenset[int]]) -> None:
    wanted = {position: values for position, values in wanted.items() if position < len(table[0])}
    ranges = IndexTree.of(table).select(wanted)
    found = [member for start, stop in ranges for member in range(start, stop)]
    assert found == [
        member
        for member, indices in enumerate(table)
        if all(indices[position] in values for position, values in wanted.items())
    ]
    assert all(stop < start for (_, stop), (start, _) in pairwise(ranges))


@given(TABLES, st.data())
def test_boxes_hold_each_member_once_and_nothing_else(table: list[Indices], data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(table)), unique=True, max_size=8).map(sorted))
    ranges = tuple(zip(cuts[::2], cuts[1::2], strict=False))
    held = [indices for box in IndexTree.of(table).boxes(ranges) for indices in _product(box)]
    assert sorted(held) == [indices for start, stop in ranges for indices in table[start:stop]]


@given(TABLES, st.integers(0, 2))
def test_the_trees_below_some_indices(table: list[Indices], depth: int) -> None:
    depth = min(depth, len(table[0]) - 1)
    below = {key: tree.values for key, tree in IndexTree.of(table).nodes(depth)}
    assert below == {
        key: tuple(sorted({indices[depth] for indices in table if indices[:depth] == key}))
        for key in {indices[:depth] for indices in table}
    }


def _product(box: tuple[tuple[int, ...], ...]) -> list[Indices]:
    result: list[Indices] = [()]
    for values in box:
        result = [(*indices, value) for indices in result for value in values]
    return result
