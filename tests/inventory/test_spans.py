"""Many names as few: what is printed reaches exactly the names that it stands for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyquant.inventory.layers import NameForm, own_name
from policyquant.inventory.spans import counted_spans, spans
from policyquant.policy.patterns import Pattern

EXPERTS = own_name("layers.#.experts.#.w1")


@pytest.mark.parametrize(
    ("form", "members", "expected"),
    [
        (own_name("lm_head"), [()], [("lm_head", 1)]),
        (own_name("layers.#.norm"), [(4,)], [("layers.4.norm", 1)]),
        (own_name("layers.#.norm"), [(0,), (1,), (2,), (7,)], [("layers.{0..2,7}.norm", 4)]),
        (EXPERTS, [(i, e) for i in range(3) for e in range(4)], [("layers.{0..2}.experts.{0..3}.w1", 12)]),
        (
            EXPERTS,
            [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)],
            [("layers.{0..1}.experts.{0..1}.w1", 4), ("layers.2.experts.0.w1", 1)],
        ),
        (NameForm("mtp.#.norm", (0,), (61,)), [(61,), (62,)], [("mtp.{0..1}.norm", 2)]),
        (NameForm("decoder.#.moe.experts", (0,), (0,)), [(0, 0), (0, 1), (1, 0)], [("decoder.{0..1}.moe.experts", 2)]),
        (own_name("odd[name].#"), [(0,), (1,)], [("odd\\[name\\].{0..1}", 2)]),
    ],
)
def test_spans(form: NameForm, members: list[tuple[int, ...]], expected: list[tuple[str, int]]) -> None:
    assert counted_spans(form, members) == expected


@given(st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1))
def test_spans_reach_each_member_once_and_nothing_else(members: set[tuple[int, int]]) -> None:
    patterns = [Pattern.compile(text) for text in spans(EXPERTS, sorted(members))]
    sizes = {"layers": 6} | {f"layers.{i}.experts": 6 for i in range(6)}
    for indices in ((i, e) for i in range(6) for e in range(6)):
        hits = sum(pattern.matches(EXPERTS.fill(indices), sizes) for pattern in patterns)
        assert hits == (indices in members)
    assert sum(count for _, count in counted_spans(EXPERTS, sorted(members))) == len(members)
