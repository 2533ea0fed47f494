"""What has one cause is one line, whatever the number of layers."""

from __future__ import annotations

import pytest

from policyquant.building.listed import folded, listed
from policyquant.building.nearest_names import NearestNames


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (
            [f"'model.layers.{i}.mlp.up_proj' is stored as F8_E5M2" for i in range(30)],
            ["'model.layers.{0..29}.mlp.up_proj' is stored as F8_E5M2"],
        ),
        (
            [f"'blocks.{i}' and 'blocks.{i}.{j}.w' differ" for i in (0, 1, 5) for j in range(4)],
            ["'blocks.{0..1,5}' and 'blocks.{0..1,5}.{0..3}.w' differ"],
        ),
        ([f"'a.{i}' reads 'a.{i + 1}'" for i in range(3)], ["'a.{0..2}' reads 'a.{1..3}'"]),
        (["'0.weight' is missing", "'2.weight' is missing"], ["'{0,2}.weight' is missing"]),
        (["'0' is missing", "'1' is missing"], ["'{0..1}' is missing"]),
        (
            [f"a.moe, expert {e}, {part}: no weight is stored" for e in range(8) for part in ("gate_proj", "up_proj")],
            ["a.moe, expert {0..7}, gate_proj, up_proj: no weight is stored"],
        ),
        (
            [f"a.{i}.{name}: no scale is stored" for i in range(2) for name in ("qkv, q", "qkv, k", "o")],
            ["a.{0..1}.qkv, q, k; a.{0..1}.o: no scale is stored"],
        ),
        (["one", "two", "one"], ["one", "two"]),
        ([], []),
    ],
)
def test_problems_that_differ_in_their_layers_alone_are_one_line(lines: list[str], told: list[str]) -> None:
    assert folded(lines) == told


def test_layers_that_are_no_range_in_every_index_are_several_lines() -> None:
    lines = [f"'a.{i}.{j}' is missing" for i, j in ((0, 0), (0, 1), (1, 1))]
    assert folded(lines) == ["'a.0.{0..1}' is missing", "'a.1.1' is missing"]


@pytest.mark.parametrize(
    "lines",
    [
        ["'a.w' has shape [2, 3]", "'a.w' has shape [4, 3]"],
        ["scale 0.5 of 'a.w'", "scale 0.25 of 'a.w'"],
        ["version 1.2.3", "version 1.2.4"],
        ["'w' in /models/7/x.safetensors", "'w' in /models/8/x.safetensors"],
        ["'w' in model-00001-of-00002.safetensors", "'w' in model-00002-of-00002.safetensors"],
        ["Linear made at train.py:3", "Linear made at train.py:4"],
        ["'a.01.w' is missing", "'a.02.w' is missing"],
        ["Linear 'a': x", "Linear 'b': x"],
    ],
)
def test_numbers_that_are_no_indices_keep_problems_apart(lines: list[str]) -> None:
    assert folded(lines) == lines


def test_the_title_counts_lines_and_tells_how_many_are_left_out() -> None:
    assert listed("No", [f"'a.{i}' is missing" for i in range(9)]) == "No: 1 problem\n  'a.{0..8}' is missing"
    assert listed("No", ["one", "two", "three"], most=2) == "No: 3 problems\n  one\n  two\n  and 1 more"


def test_names_of_many_layers_get_one_hint_with_their_own_indices() -> None:
    names = NearestNames(f"blocks.{i}.up_proj" for i in range(200))
    assert [names.hint(f"blocks.{i}.up_prj") for i in range(200)] == [
        f"; did you mean 'blocks.{i}.up_proj'?" for i in range(200)
    ]
    assert "blocks.300" not in names.hint("blocks.300.up_prj"), "only what is known is told"


def test_a_name_of_indices_that_nothing_has_takes_no_hint_from_the_others() -> None:
    names = NearestNames(f"blocks.{i}.experts.{e}.w1" for i in range(4) for e in range(2))
    hints = [names.hint(f"blocks.{i}.experts.{e}.w3") for i in range(4) for e in range(3)]
    assert [hint for hint in hints if "blocks.2.experts.1.w1" in hint] == ["; did you mean 'blocks.2.experts.1.w1'?"]
    assert hints[3:5] == ["; did you mean 'blocks.1.experts.0.w1'?", "; did you mean 'blocks.1.experts.1.w1'?"]
