"""A launch is compiled for aligned access where shapes, strides and the base allow it, and only there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.proof.compiled import ROOT

SCRIPT = """
import json
from proof.case import BF16, FP8, FP32, Case, meta
from proof.compile import launches, specialize

def inputs(**layout):
    return lambda: (meta(32, 512, **layout), meta(256, 512, dtype=FP8), meta(1, dtype=FP32), None, BF16)

layouts = {
    "contiguous": {}, "aligned pitch": {"pitch": 640}, "aligned offset": {"offset": 8},
    "odd pitch": {"pitch": 513}, "odd offset": {"offset": 1},
}
found = {}
for name, layout in layouts.items():
    launch = launches(Case("fp8_weight_only_mm", name, inputs(**layout), {}), 90)[0]
    found[name] = sorted(specialize(launch, 90).divisible)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def divisible() -> dict[str, Any]:
    """Layout of x → the arguments of the product's kernel that 16 is known to divide."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("layout", ["contiguous", "aligned pitch", "aligned offset"])
def test_the_aligned_kernel_is_taken_where_it_can_be(divisible: dict[str, Any], layout: str) -> None:
    assert {"x", "stride_x_row", "scale", "out"} <= set(divisible[layout])


def test_a_pitch_that_16_does_not_divide_is_not_taken_for_one(divisible: dict[str, Any]) -> None:
    assert "stride_x_row" not in divisible["odd pitch"]
    assert "x" in divisible["odd pitch"]


def test_an_address_that_16_does_not_divide_is_not_taken_for_one(divisible: dict[str, Any]) -> None:
    assert "x" not in divisible["odd offset"]
    assert "stride_x_row" in divisible["odd offset"]
