"""Going on below an index with all indices that lead to one state is the same as going on with each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyquant.policy.glob_automaton import Branch, Range
from policyquant.policy.patterns import Pattern

PIECES = st.sampled_from(["*", "?", "1", "12", "0", "a", "w1", "[0-3]", "[!1]", "{0..3}", "{-2..-1,5}", "{1,-3}"])
PATTERNS = st.lists(PIECES, min_size=1, max_size=4).map(".".join) | st.sampled_from(["*1", "1*.a", "a.1?", "*.1[2].b"])
VALUES = st.lists(st.integers(0, 30), min_size=1, max_size=12, unique=True).map(sorted)


@given(PATTERNS, st.sampled_from(["", "a.", "1.", "a.1.", "12.a."]), VALUES)
def test_groups_of_indices_are_those_that_each_index_by_itself_would_give(
    text: str, read: str, values: list[int]
) -> None:
    size = values[-1] + 1
    for branch in Pattern.compile(text).branches:
        state = branch.step(branch.initial, read)
        alone = {value: continuation(branch, branch.step_index(state, value, size)) for value in values}
        together = {
            value: continuation(branch, after)
            for after, alike in branch.groups(state, values, size).items()
            for value in alike
        }
        assert {value: what for value, what in alone.items() if what != (False, 0)} == {
            value: what for value, what in together.items() if what != (False, 0)
        }


def continuation(branch: Branch, state: int) -> tuple[bool, int]:
    """Whether the name may end here, and the state behind a dot: all that can follow an index."""
    return bool(state & branch.accept), branch.step(state, ".")


def test_an_exact_index_among_many_is_found_without_trying_them_all() -> None:
    (branch,) = Pattern.compile("layers.17.mlp").branches
    state = branch.step(branch.initial, "layers.")
    (values,) = branch.groups(state, range(1_000_000_000), 0).values()
    assert list(values) == [17]


def test_a_range_of_a_billion_costs_what_the_model_has() -> None:
    (branch,) = Pattern.compile("layers.{0..999999999}.mlp").branches
    state = branch.step(branch.initial, "layers.")
    (values,) = branch.groups(state, range(61), 61).values()
    assert list(values) == list(range(61))


@pytest.mark.parametrize(
    ("limits", "values", "among"),
    [
        (Range(0, 3), [0, 2, 3, 4], [0, 2, 3]),
        (Range(-2, -1), [0, 1, 2, 3], [2, 3]),
        (Range(2, -1), [0, 1, 2, 3], [2, 3]),
        (Range(9, 12), [0, 1, 2, 3], []),
    ],
)
def test_a_range_is_clipped_to_the_indices_there_are(limits: Range, values: list[int], among: list[int]) -> None:
    assert list(limits.among(values, 4)) == among
