"""What is tried for a class of shapes, and the calls that stand for it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from policyquant.kernels.triton.launch import Target
from policyquant.kernels.tuning import shape_classes, shipped
from policyquant.kernels.tuning.candidates import MOST, SPACES, candidates, why_not
from policyquant.kernels.tuning.problems import problems
from policyquant.kernels.tuning.tune import shape_classes_of

CAPABILITIES = ((8, 0), (8, 9), (9, 0), (10, 0))
CLASSES = [
    (family, capability, name)
    for family in SPACES
    for capability in CAPABILITIES
    for name in shape_classes(family, capability)
]
every_class = pytest.mark.parametrize(("family", "capability", "shape_class"), CLASSES)
HOPPER = (9, 0)
MANY_ROWS = shipped("scaled_mm", HOPPER, "many rows")


@pytest.mark.parametrize(
    "family",
    [
        *("scaled_mm", "grouped_mm", "fused_moe", "weight_only_mm", "quantize"),
        *("group_quantize", "activation", "norm", "kv_cache"),
    ],
)
def test_every_family_of_the_first_tier_is_tuned(family: str) -> None:
    assert family in SPACES


@every_class
def test_what_is_shipped_is_within_what_is_tried(family: str, capability: tuple[int, int], shape_class: str) -> None:
    present = shipped(family, capability, shape_class)
    assert why_not(family, shape_class, present, present, capability) is None


@every_class
def test_there_are_candidates_and_a_table_may_hold_any(
    family: str, capability: tuple[int, int], shape_class: str
) -> None:
    present = shipped(family, capability, shape_class)
    found = candidates(family, shape_class, present, capability)
    assert 2 <= len(found) <= MOST
    assert present not in found
    assert len({str(each) for each in found}) == len(found)
    assert all(why_not(family, shape_class, present, each, capability) is None for each in found)
    changed = [sum(each[key] != present[key] for key in present) for each in found]
    assert changed == sorted(changed)
    # How sums are rounded is no matter of speed.
    assert all(each.get("PROMOTED") == present.get("PROMOTED") for each in found)


@every_class
@pytest.mark.parametrize("tiny", [False, True])
def test_its_calls_ask_for_it(family: str, capability: tuple[int, int], shape_class: str, tiny: bool) -> None:
    calls = problems(family, shape_class, tiny=tiny)
    assert calls
    wanted = (family, shape_class.removesuffix(", fast accumulation"))
    for text in calls:
        assert wanted in shape_classes_of(text, Target(capability, 4 if tiny else 132))


@pytest.mark.parametrize(
    ("change", "capability", "said"),
    [
        ({"num_warps": 4}, HOPPER, "256 sums a thread"),
        ({"BLOCK_N": 256}, HOPPER, "256 sums a thread"),
        ({"num_stages": 5}, (8, 9), "163840 bytes of shared memory, of 101376"),
        ({"BLOCK_M": 32}, HOPPER, "BLOCK_M is 32; expected 64 or 128 or 256"),
        ({"BLOCK_K": 64}, HOPPER, "BLOCK_K is 64; expected 128"),
        ({"PROMOTED": False}, HOPPER, "PROMOTED is False; expected True"),
        ({"num_warps": 8.0}, HOPPER, "num_warps is 8.0"),
        ({"num_warps": True}, HOPPER, "num_warps is True"),
        ({"num_warps": [8]}, HOPPER, r"num_warps is \[8\]"),
        ({"WARPS": 8}, HOPPER, "it has .*WARPS; expected BLOCK_M"),
    ],
)
def test_what_a_gpu_would_not_run_well_is_not_tried(
    change: dict[str, Any], capability: tuple[int, int], said: str
) -> None:
    reason = why_not("scaled_mm", "many rows", MANY_ROWS, {**MANY_ROWS, **change}, capability)
    assert re.search(said, str(reason))


def test_a_scale_belongs_to_all_channels_of_a_tile() -> None:
    present = shipped("scaled_mm", HOPPER, "many rows, blocks")
    wide = {**present, "BLOCK_M": 64, "BLOCK_N": 256}
    assert "wider than the 128 channels" in str(why_not("scaled_mm", "many rows, blocks", present, wide, HOPPER))


def test_tensor_cores_have_64_rows() -> None:
    present = shipped("scaled_mm", HOPPER, "64 rows")
    narrow = {**present, "BLOCK_M": 32, "SWAPPED": False}
    assert "64 rows or more" in str(why_not("scaled_mm", "64 rows", present, narrow, HOPPER))


def test_nothing_is_tried_where_nothing_is_known() -> None:
    assert candidates("scaled_mm", "a million rows", MANY_ROWS, HOPPER) == []
    assert why_not("scaled_m", "many rows", MANY_ROWS, MANY_ROWS, HOPPER) == "nothing is tried for this class of shapes"
    assert problems("scaled_mm", "a million rows") == []
