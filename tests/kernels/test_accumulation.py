"""Long sums: the matrix units of FP8 keep about 13 bits of a sum, so kernels take partial sums out every 128 of K.

A kernel that leaves all of K to them errs by ten times the gate at K = 16384 and passes every test with a short K.
"""

from __future__ import annotations

import pytest
import torch

from policyquant.kernels import dispatch, ops, reference
from tests.kernels.device import DEVICE

K = 16384
GATE = 2.5e-3
"""Relative Frobenius error. The rounding to bfloat16 alone is 1.7e-3 (uniform, up to 2**-9 of the value)."""
KEPT_BITS = 13
"""Of a sum, below its leading bit (DeepSeek-AI 2024, arXiv:2412.19437, section 3.5.2: about 14 bits in all)."""


def operands(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """FP8 a [32, K] and b [64, K]: normal, or all positive, where truncation does not cancel."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(rows, K, generator=generator) for rows in (32, 64))
    if kind == "positive":
        a, b = a.abs(), b.abs()
    return a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)


def relative_error(y: torch.Tensor, exact: torch.Tensor) -> float:
    return float((y.double() - exact).norm() / exact.norm())


def truncated(sums: torch.Tensor) -> torch.Tensor:
    """Sums cut to the bits that a matrix unit keeps."""
    exponent = torch.frexp(sums).exponent - 1
    return torch.ldexp(torch.trunc(torch.ldexp(sums, KEPT_BITS - exponent)), exponent - KEPT_BITS)


def simulated(a: torch.Tensor, b: torch.Tensor, promoted_every: int) -> torch.Tensor:
    """a @ b.T as a matrix unit sums it, 32 of K at a time; its sums are added in float32 every `promoted_every`."""
    wide_a, wide_b = reference.decode(a), reference.decode(b)
    total = torch.zeros(a.shape[0], b.shape[0])
    for start in range(0, K, promoted_every):
        unit = torch.zeros(a.shape[0], b.shape[0], dtype=torch.float64)
        for at in range(start, min(start + promoted_every, K), 32):
            unit = truncated(unit + truncated(wide_a[:, at : at + 32] @ wide_b[:, at : at + 32].T))
        total = total + unit.float()
    return total


@pytest.mark.parametrize("kind", ["normal", "positive"])
def test_the_gate_tells_sums_that_are_taken_out_from_those_that_are_not(kind: str) -> None:
    a, b = operands(kind)
    exact = reference.decode(a) @ reference.decode(b).T
    assert relative_error(simulated(a, b, 128).bfloat16(), exact) <= GATE
    assert relative_error(simulated(a, b, K).bfloat16(), exact) > 2 * GATE


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["normal", "positive"])
@pytest.mark.parametrize("rows", [1, 32])
@pytest.mark.parametrize("implementation", [each.name for each in dispatch.operators()["scaled_mm"]])
def test_products_of_tensors_pass_the_gate(implementation: str, rows: int, kind: str) -> None:
    a, b = operands(kind)
    a = a[:rows]
    one = torch.ones(1, device=DEVICE)
    if DEVICE == "cpu" and implementation not in ("triton", "torch"):
        pytest.skip("needs a GPU")
    with dispatch.force(scaled_mm=implementation):
        y = ops.scaled_mm(a.to(DEVICE), b.to(DEVICE), one, one)
    assert relative_error(y.cpu(), reference.decode(a) @ reference.decode(b).T) <= GATE
