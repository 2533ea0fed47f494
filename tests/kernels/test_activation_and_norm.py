"""Gated activations and norms."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from policyquant.kernels import ops, reference

X = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_first_half_is_the_gate(dtype: torch.dtype) -> None:
    x = X.to(dtype)
    assert torch.equal(ops.silu_and_mul(x), functional.silu(x[:, :4]) * x[:, 4:])
    assert torch.equal(ops.gelu_and_mul(x), functional.gelu(x[:, :4]) * x[:, 4:])
    assert torch.equal(ops.gelu_and_mul(x, "tanh"), functional.gelu(x[:, :4], approximate="tanh") * x[:, 4:])


def test_rms_norm_is_the_definition() -> None:
    weight = torch.linspace(0.5, 2, 8)
    wide = X.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    torch.testing.assert_close(ops.rms_norm(X, weight, 1e-6).double(), expected, rtol=16 * 2**-24, atol=0)


def test_fused_add_norms_the_sum_and_returns_it() -> None:
    weight = torch.ones(8)
    y, total = ops.fused_add_rms_norm(X, 2 * X, weight, 1e-6)
    assert torch.equal(total, X + 2 * X)
    assert torch.equal(y, ops.rms_norm(total, weight, 1e-6))


def test_a_residual_of_another_dtype_is_handed_on_in_that_of_x() -> None:
    x, residual, weight = torch.ones(2, 8).bfloat16(), torch.full((2, 8), 1e-3), torch.ones(8).bfloat16()
    normalized, total = ops.fused_add_rms_norm(x, residual, weight, 1e-6)
    expected, expected_total = reference.fused_add_rms_norm(x, residual, weight, 1e-6)
    assert normalized.dtype == total.dtype == torch.bfloat16
    assert torch.equal(total, expected_total)
    torch.testing.assert_close(normalized, expected.bfloat16())
