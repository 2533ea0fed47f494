"""How far quantized layers are from unquantized ones: no more than the formats allow, on hostile values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from policyquant.checkpoint.tensors import Slot
from policyquant.kernels import reference
from policyquant.layers.base import WeightLayer
from policyquant.layers.linear import Linear
from policyquant.methods.pieces import entry, pieces
from policyquant.policy.scheme import Quantization
from tests.kernels import error_bounds, hostile
from tests.methods import layers_under_test as under_test

FORMS = [form for form in under_test.FORMS if form != "fp8 static from the checkpoint"]
DTYPES = {
    "int8": torch.int8,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
}


def weight_error(layer: WeightLayer, exact: torch.Tensor) -> torch.Tensor:
    """|weight - stored weight| at most, from the format and the scales of rows or parts."""
    how = layer.scheme.weight
    if how is None:
        return torch.zeros_like(exact)
    dtype, largest = DTYPES[how.dtype], _largest(how)
    error = torch.empty_like(exact)
    for expert, _, rows in pieces(layer):
        piece = entry(exact, expert)[rows]
        over = piece.reshape(1, -1) if how.granularity == "tensor" else piece
        entry(error, expert)[rows] = error_bounds.encoding(piece, reference.scales(over, largest), dtype)
    return error


def input_error(layer: WeightLayer, x: torch.Tensor) -> torch.Tensor:
    """|x - what is multiplied| at most, from the format and the scales of rows or of all of x."""
    how = layer.scheme.input
    if how is None:
        return torch.zeros_like(x, dtype=torch.float64)
    if how.scheme == "static":
        assert how.scale is not None
        scale = torch.tensor([how.scale])
    else:
        scale = reference.scales(x.reshape(-1) if how.granularity == "tensor" else x, _largest(how), how.scale_ub)
    return error_bounds.encoding(x, scale, DTYPES[how.dtype])


def _largest(how: Quantization) -> float:
    dtype = DTYPES[how.dtype]
    return 127.5 if dtype == torch.int8 else torch.finfo(dtype).max


def assert_within_formats(layer: WeightLayer, x: torch.Tensor, weight: torch.Tensor) -> None:
    """|y - (x · weightᵀ + bias)| ≤ Σ_k |x| · e_w + |w| · e_x + e_x · e_w, and the error of sums and rounding.

    With e_x and e_w, what x and the weight err by, (x + e_x)(w + e_w) - x · w is just that, term by term.
    """
    y = under_test.apply(layer, x)
    of_x, of_weight = input_error(layer, x), weight_error(layer, weight)
    exact = under_test.by_expert(layer, x.double(), weight) + under_test.bias_by_row(layer)
    formats = (
        under_test.by_expert(layer, x.double().abs(), of_weight)
        + under_test.by_expert(layer, of_x, weight.abs())
        + under_test.by_expert(layer, of_x, of_weight)
    )
    magnitude = under_test.by_expert(layer, x.double().abs() + of_x, weight.abs() + of_weight)
    largest_scale = (x.double().abs().max() + weight.abs().max()) / 100
    sums = error_bounds.product(
        magnitude + under_test.bias_by_row(layer).abs(), layer.in_features, largest_scale, largest_scale
    )
    # Float64 sums have an error too, which shows where the formats have next to none.
    error_bounds.assert_within(y, exact, formats + sums + magnitude * 2.0**-48)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", under_test.PRODUCTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_errs_by_no_more_than_its_formats(form: str, kind: str, dtype: torch.dtype) -> None:
    layer = under_test.LAYERS[kind](dtype)
    stored = under_test.stored_tensors(layer, form)
    under_test.load(layer, form, stored)
    assert_within_formats(layer, under_test.some_input(layer), under_test.unquantized_weight(layer, stored))


def finite(x: torch.Tensor) -> torch.Tensor:
    """Without NaN and infinity, and of at most 1e15, so that float32 holds every sum of products."""
    return x.contiguous().float().nan_to_num(nan=1.0).clamp(-1e15, 1e15)


@pytest.mark.parametrize("form", FORMS)
@given(x=hostile.tensors(at_least=1), weight=hostile.tensors(at_least=1))
@settings(max_examples=50)
def test_a_linear_errs_by_no_more_than_its_formats_on_hostile_values(
    form: str, x: torch.Tensor, weight: torch.Tensor
) -> None:
    columns = min(x.shape[1], weight.shape[1])
    x, weight = finite(x[:, :columns]), finite(weight[:, :columns])
    layer = Linear(columns, len(weight), bias=False)
    under_test.load(layer, form, {Slot("weight"): weight})
    assert_within_formats(layer, x, weight.double())


@pytest.mark.parametrize("form", FORMS)
@given(x=hostile.tensors(at_least=1), data=st.data())
@settings(max_examples=50)
def test_what_is_not_finite_in_one_row_reaches_no_other(form: str, x: torch.Tensor, data: Any) -> None:
    """A scale for the whole tensor comes from its finite elements. A row with NaN gives NaN; infinity is saturated."""
    weight = torch.randn(3, x.shape[1], generator=torch.Generator().manual_seed(data.draw(st.integers(0, 99))))
    x = x.contiguous().float()
    x = torch.where(x.isfinite(), x.clamp(-1e15, 1e15), x)
    assume(not bool(x.isfinite().all()))
    layer = Linear(x.shape[1], 3, bias=False)
    under_test.load(layer, form, {Slot("weight"): weight})
    y = under_test.apply(layer, x)
    finite_rows = x.isfinite().all(-1)
    alone = under_test.apply(layer, torch.where(x.isfinite(), x, 0.0))
    assert torch.equal(y[finite_rows], alone[finite_rows])
    assert bool(y[x.isnan().any(-1)].isnan().all())
    if layer.scheme.input is not None:
        assert bool(y[~x.isnan().any(-1)].isfinite().all())
