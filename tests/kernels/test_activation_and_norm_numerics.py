"""Activations and norms: within the roundings that their references name, on hostile values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from policyquant.kernels import ops, reference
from tests.kernels import error_bounds, hostile
from tests.kernels.error_bounds import U

ACTIVATIONS: list[tuple[str, tuple[str, ...]]] = [
    ("silu_and_mul", ()),
    ("gelu_and_mul", ("none",)),
    ("gelu_and_mul", ("tanh",)),
]


def activation_bound(x: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Of act(gate) · up, whose factors act(gate) and the product are each rounded to x.dtype.

    act(gate) = gate · share with a share in 0 … 1 that is computed in float32 with an error of a few U, absolute where
    1 + erf or 1 + tanh cancels: 16 · U · |gate|. Below -88.7, exp(-gate) overflows float32 and silu is 0 instead of at
    most 89 · 2**-128. Then come two roundings of half a unit in the last place of x.dtype, and two near zero.
    """
    gate, up = x.double().abs().chunk(2, dim=-1)
    of_act = 16 * U * gate + 89 * 2.0**-128
    eps, tiny = torch.finfo(x.dtype).eps, error_bounds.half_subnormal(x.dtype)
    return of_act * up + exact.abs() * eps + 2 * tiny * (1 + up)


@pytest.mark.parametrize(("operator", "arguments"), ACTIVATIONS)
@given(x=hostile.tensors())
def test_an_activation_rounds_as_its_reference_says(operator: str, arguments: tuple[str, ...], x: torch.Tensor) -> None:
    """Of finite gates and values; tanh's argument, gate³, fits float32 up to 1e12."""
    x = torch.cat((x, x.flip(0)), dim=-1)
    y, exact = getattr(ops, operator)(x, *arguments), getattr(reference, operator)(x, *arguments)
    assert (y.shape, y.dtype) == (exact.shape, x.dtype)
    sure = torch.stack(x.isfinite().chunk(2, dim=-1)).all(0) & (x.chunk(2, dim=-1)[0].abs() < 1e12)
    error_bounds.assert_within(y[sure], exact[sure], activation_bound(x, exact)[sure])


def norm_bound(exact: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype, terms: int) -> torch.Tensor:
    """Of x / sqrt(mean(x²) + eps) · weight, with the first product rounded to x's dtype, the last to y's.

    The sum of `terms` squares has terms + 2 float32 roundings, of which the root halves the effect; the reciprocal
    root and two products have a few more. Then a rounding to x's dtype, and the product with the weight.
    """
    relative = (terms / 2 + 8) * U + torch.finfo(dtype).eps / 2
    return exact.abs() * relative * 1.01 + 2 * error_bounds.half_subnormal(dtype) * weight.double().abs()


@given(x=hostile.tensors(at_least=1), eps=st.sampled_from([1e-6, 1e-5, 1e-12]), data=st.data())
def test_rms_norm_rounds_as_its_reference_says(x: torch.Tensor, eps: float, data: st.DataObject) -> None:
    """Rows whose squares pass the largest float32 are zeros, as transformers has them."""
    weight = data.draw(weights(x.shape[-1]))
    y, exact = ops.rms_norm(x, weight, eps), reference.rms_norm(x, weight, eps)
    assert (y.shape, y.dtype) == (x.shape, torch.promote_types(x.dtype, weight.dtype))
    sure = squares_fit(x)
    bound = norm_bound(exact, weight, x.dtype, x.shape[-1]).expand_as(exact)
    error_bounds.assert_within(y[sure], exact[sure], bound[sure])


@given(x=hostile.tensors(at_least=1), data=st.data())
@settings(max_examples=50)
def test_a_residual_is_added_and_rounded_before_the_norm(x: torch.Tensor, data: st.DataObject) -> None:
    residual = x.flip(-1) * data.draw(st.sampled_from([1.0, -1.0, 2.0**-9, 1e5]))
    weight = data.draw(weights(x.shape[-1]))
    y, total = ops.fused_add_rms_norm(x, residual, weight, 1e-6)
    exact, expected_total = reference.fused_add_rms_norm(x, residual, weight, 1e-6)
    torch.testing.assert_close(total, expected_total, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(y, ops.rms_norm(total, weight, 1e-6), rtol=0, atol=0, equal_nan=True)
    sure = squares_fit(total)
    bound = norm_bound(exact, weight, x.dtype, x.shape[-1]).expand_as(exact)
    error_bounds.assert_within(y[sure], exact[sure], bound[sure])


@st.composite
def weights(draw: Any, size: int) -> torch.Tensor:
    """[size] in any dtype."""
    drawn = draw(st.lists(st.floats(-100, 100, width=32), min_size=size, max_size=size))
    return torch.tensor(drawn, dtype=draw(st.sampled_from(hostile.FLOATS)))


def squares_fit(x: torch.Tensor) -> torch.Tensor:
    """Whose row's sum of squares is finite in float32; NaN and infinity are in no such row."""
    fit: torch.Tensor = x.double().square().sum(-1, keepdim=True) < error_bounds.LARGEST_FLOAT32 / 2
    return fit.expand_as(x)
