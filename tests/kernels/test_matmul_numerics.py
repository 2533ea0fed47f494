"""Products with 8-bit weights: within the error of float32 sums and one rounding of the float64 reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from policyquant.kernels import ops, reference
from tests.kernels import error_bounds, hostile

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
sizes = st.tuples(st.integers(0, 5), st.integers(1, 9), st.integers(0, 33))
"""M rows, N channels, K terms."""


def codes(shape: tuple[int, int], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """Any codes but NaN and infinity, every one as likely."""
    q = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8).view(dtype)
    return q if dtype == torch.int8 else torch.where(q.float().isfinite(), q.view(torch.uint8), 0).view(dtype)


@st.composite
def scales(draw: Any, rows: int) -> torch.Tensor:
    """[1], or [rows, 1]."""
    if draw(st.booleans()):
        return torch.tensor([draw(hostile.scale_values)])
    return torch.tensor(draw(st.lists(hostile.scale_values, min_size=rows, max_size=rows))).reshape(rows, 1)


@st.composite
def biases(draw: Any, rows: int) -> torch.Tensor | None:
    """None, or [rows] in any dtype."""
    if draw(st.booleans()):
        return None
    drawn = draw(st.lists(st.floats(-1e4, 1e4, width=32), min_size=rows, max_size=rows))
    return torch.tensor(drawn, dtype=draw(st.sampled_from(hostile.FLOATS)))


@pytest.mark.parametrize("dtype", FP8)
@given(size=sizes, seed=st.integers(0, 2**32), out_dtype=st.sampled_from(hostile.FLOATS), data=st.data())
def test_scaled_mm_sums_in_float32_and_rounds_once(
    dtype: torch.dtype, size: tuple[int, int, int], seed: int, out_dtype: torch.dtype, data: st.DataObject
) -> None:
    """Where Σ |a · b| times either scale passes the largest float32, a product on the way may be infinite."""
    m, n, k = size
    a, b = codes((m, k), dtype, seed), codes((n, k), dtype, seed + 1)
    scale_a, scale_b, bias = data.draw(scales(m)), data.draw(scales(n)), data.draw(biases(n))
    y = ops.scaled_mm(a, b, scale_a, scale_b, bias, out_dtype)
    exact = reference.scaled_mm(a, b, scale_a, scale_b, bias)
    assert (y.shape, y.dtype) == ((m, n), out_dtype)
    sums = reference.decode(a).abs() @ reference.decode(b).abs().T
    by_row, by_column = scale_a.double(), scale_b.double().reshape(-1)
    magnitude = sums * by_row * by_column + (0.0 if bias is None else bias.double().abs())
    bound = error_bounds.product(magnitude, k, by_row, by_column)
    sure = (sums * torch.maximum(by_row, by_column) < error_bounds.LARGEST_FLOAT32 / 2).expand_as(y)
    error_bounds.assert_within(y[sure], exact[sure], bound.expand_as(y)[sure])


@given(x=hostile.tensors(at_least=1), n=st.integers(1, 9), seed=st.integers(0, 2**32), data=st.data())
def test_int8_weight_only_mm_sums_in_float32_and_rounds_once(
    x: torch.Tensor, n: int, seed: int, data: st.DataObject
) -> None:
    """Rows that hold NaN or infinity have no finite result; sums beyond the largest float32 may be infinite."""
    m, k = x.shape
    q, scale, bias = codes((n, k), torch.int8, seed), data.draw(scales(n)), data.draw(biases(n))
    out_dtype = data.draw(st.sampled_from(hostile.FLOATS))
    y = ops.int8_weight_only_mm(x, q, scale, bias, out_dtype)
    exact = reference.int8_weight_only_mm(x, q, scale, bias)
    assert (y.shape, y.dtype) == ((m, n), out_dtype)
    sums = x.double().abs() @ q.double().abs().T
    by_column = scale.double().reshape(-1)
    magnitude = sums * by_column + (0.0 if bias is None else bias.double().abs())
    bound = error_bounds.product(magnitude, k, by_column)
    finite = x.isfinite().all(-1, keepdim=True)
    sure = finite & (sums < error_bounds.LARGEST_FLOAT32 / 2)
    error_bounds.assert_within(y[sure], exact[sure], bound.expand_as(y)[sure])
    assert not bool(y[~finite[:, 0]].isfinite().any())


@pytest.mark.parametrize("dtype", FP8)
def test_a_long_sum_stays_within_the_bound(dtype: torch.dtype) -> None:
    """Sums kept in fewer bits than float32 has (14 in some tensor cores) fail this."""
    a, b, one = codes((4, 16384), dtype, 0), codes((3, 16384), dtype, 1), torch.ones(1)
    y = ops.scaled_mm(a, b, one, one, out_dtype=torch.float32)
    magnitude = reference.decode(a).abs() @ reference.decode(b).abs().T
    error_bounds.assert_within(y, reference.scaled_mm(a, b, one, one), error_bounds.product(magnitude, 16384))


@pytest.mark.parametrize("dtype", FP8)
def test_exact_products_come_out_exact(dtype: torch.dtype) -> None:
    """Small integers times powers of two have no rounding to hide behind."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-4, 5, shape, generator=generator).float().to(dtype) for shape in ((7, 33), (5, 33)))
    scale_a, scale_b = torch.tensor([[2.0**i] for i in range(7)]), torch.tensor([[2.0**-i] for i in range(5)])
    y = ops.scaled_mm(a, b, scale_a, scale_b, out_dtype=torch.float32)
    assert torch.equal(y.double(), reference.scaled_mm(a, b, scale_a, scale_b))


@pytest.mark.parametrize("layout", hostile.LAYOUTS)
def test_operands_may_have_any_layout(layout: str) -> None:
    one, seed = torch.ones(1), torch.Generator().manual_seed(0)
    a, b, q = codes((5, 12), FP8[0], 0), codes((7, 12), FP8[0], 1), codes((7, 12), torch.int8, 1)
    x = torch.randn(5, 12, generator=seed)
    laid_out = [hostile.laid_out(each, layout) for each in (a, b, x, q)]
    for found, exact, magnitude in (
        (
            ops.scaled_mm(laid_out[0], laid_out[1], one, one, out_dtype=torch.float32),
            reference.scaled_mm(a, b, one, one),
            reference.decode(a).abs() @ reference.decode(b).abs().T,
        ),
        (
            ops.int8_weight_only_mm(laid_out[2], laid_out[3], one),
            reference.int8_weight_only_mm(x, q, one),
            x.double().abs() @ q.double().abs().T,
        ),
    ):
        assert found.is_contiguous()
        error_bounds.assert_within(found, exact, error_bounds.product(magnitude, 12))
