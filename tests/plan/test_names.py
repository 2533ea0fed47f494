"""What a pattern reaches over the folded names is what it reaches over the names one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyquant.inventory.collapse import collapse
from policyquant.inventory.layers import LayerSet, Part, own_name
from policyquant.plan.names import NameTree
from policyquant.plan.spans import unit_spans
from policyquant.plan.units import Unit, units_of
from policyquant.policy.patterns import Pattern

MOE = [
    *(f"model.layers.{i}.self_attn.{p}_proj.weight" for i in range(12) for p in "qkvo"),
    *(f"model.layers.{i}.mlp.experts.{e}.w{w}.weight" for i in range(3, 12) for e in range(6) for w in (1, 2, 3)),
    *(f"model.layers.{i}.mlp.gate.weight" for i in range(3, 12)),
    *(f"visual.blocks.{i}.mlp.w1.weight" for i in range(5)),
    "model.embed_tokens.weight",
    "lm_head.weight",
]


def tree_of(tensor_names: Sequence[str]) -> tuple[NameTree, list[Unit]]:
    sets = []
    for stored in collapse((name, None, None) for name in tensor_names):
        names = {"checkpoint": (own_name(stored.template),)}
        sets.append(LayerSet("linear", stored.indices, names, (Part("", names, None),)))  # type: ignore[arg-type]
    units = units_of(sets)
    return NameTree(units, "checkpoint"), units


def reached(tree: NameTree, units: list[Unit], pattern: str) -> set[str]:
    return {
        units[number].name(member)
        for number, ranges in tree.reach(Pattern.compile(pattern)).items()
        for start, stop in ranges
        for member in range(start, stop)
    }


def containers(names: Sequence[str]) -> Mapping[str, int]:
    sizes: dict[str, int] = {}
    for name in names:
        parts = name.split(".")
        for i, part in enumerate(parts):
            if part.isdecimal():
                container = ".".join(parts[:i])
                sizes[container] = max(sizes.get(container, 0), int(part) + 1)
    return sizes


def one_by_one(layers: Sequence[str], pattern: str) -> set[str]:
    compiled, sizes = Pattern.compile(pattern), containers(layers)
    if compiled.is_regex:
        return {layer for layer in layers if compiled.matches(layer)}
    return {
        layer
        for layer in layers
        if any(compiled.matches(layer[:end], sizes) for end in [i for i, c in enumerate(layer) if c == "."] + [None])
    }


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        ("*", 12 * 4 + 9 * 6 * 3 + 9 + 5 + 2),
        ("lm_head", 1),
        ("model.layers.1", 4),
        ("model.layers.1*", 4 + 2 * (4 + 18 + 1)),
        ("model.layers.{0..3,-4..-1}", 8 * 4 + 5 * 19),
        ("*.{0..1}.mlp.w1", 2),
        ("*.{-1}.mlp", 18 + 1 + 1),
        ("*.experts.{0,-1}.w1", 18),
        ("*.experts.?.w[13]", 108),
        ("*.w1", 54 + 5),
        ("*.layers.*.gate", 9),
        ("model.layers.7.mlp.experts.2.w3", 1),
        ("model.layers.99", 0),
        (r"re:.*experts\.[0-2]\.w1", 27),
        (r"re:.*w1", 59),
        (r"re:model\.layers\.1\..*", 4),
    ],
)
def test_a_pattern_reaches_the_layers_it_names_and_all_inside_the_modules_it_names(pattern: str, count: int) -> None:
    tree, units = tree_of(MOE)
    layers = [name.removesuffix(".weight") for name in MOE]
    found = reached(tree, units, pattern)
    assert found == one_by_one(layers, pattern)
    assert len(found) == count


def test_many_regular_expressions_give_the_same_together_as_alone() -> None:
    patterns = [Pattern.compile(rf"re:.*layers\.{i}\..*") for i in range(150)]
    tree, units = tree_of(MOE)
    tree.prepare(patterns)
    for pattern in patterns:
        assert reached(tree, units, pattern.text) == reached(*tree_of(MOE), pattern.text)


_PART = st.sampled_from(["a", "b", "layers", "w1", "0", "1", "2", "10", "11"])
_NAMES = st.lists(st.lists(_PART, min_size=1, max_size=5).map(".".join), min_size=1, max_size=30, unique=True)
_PIECE = st.sampled_from(
    ["a", "layers", "*", "?", "w1", "1", "[0-9]", "1*", "*1", "{0..1}", "{-1}", "{0..1,-2..-1}", "{1..-1}", "{a,1}"]
)
_PATTERN = st.lists(_PIECE, min_size=1, max_size=5).map(".".join)


@given(layers=_NAMES, pattern=_PATTERN)
def test_folded_and_unfolded_names_agree(layers: list[str], pattern: str) -> None:
    tree, units = tree_of([f"{layer}.weight" for layer in layers])
    assert reached(tree, units, pattern) == one_by_one(layers, pattern)


@given(layers=_NAMES, pattern=_PATTERN)
def test_the_folded_names_that_are_shown_are_patterns_that_reach_just_these_layers(
    layers: list[str], pattern: str
) -> None:
    tree, units = tree_of([f"{layer}.weight" for layer in layers])
    for number, ranges in tree.reach(Pattern.compile(pattern)).items():
        unit = units[number]
        wanted = {unit.name(m) for start, stop in ranges for m in range(start, stop)}
        # A span covers what is inside the layers as well, so only the layers of this unit are compared.
        shown = {name for span in unit_spans(unit, ranges) for name in reached(tree, units, span)} & {
            unit.name(m) for m in range(unit.count)
        }
        assert shown == wanted
