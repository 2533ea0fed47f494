"""The encoder inside kernels: its cheap quotient decides every code as division does, shown on a sample around ties."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from policyquant.kernels import reference
from policyquant.kernels.triton.encode import encode, encode_by_power_of_two, encode_int8
from tests.kernels.device import DEVICE

ROWS, COLUMNS = 512, 64
FORMATS = [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8]
SPECIAL = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-45, -1e-45, 3.4028234e38, -3.4028234e38]

pytestmark = pytest.mark.gpu


@triton.jit
def _encode(
    x, scale, out, largest: tl.constexpr, power_of_two: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr
):  # type: ignore[no-untyped-def]
    row, column = tl.arange(0, rows)[:, None], tl.arange(0, columns)[None, :]
    value, known = tl.load(x + row * columns + column), tl.load(scale + row)
    if out.dtype.element_ty.is_int():
        codes = encode_int8(value, known)
    elif power_of_two:
        codes = encode_by_power_of_two(value, known, largest, out.dtype.element_ty)
    else:
        codes = encode(value, known, largest, out.dtype.element_ty)
    tl.store(out + row * columns + column, codes)


def encoded(x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype, power_of_two: bool = False) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=dtype, device=DEVICE)
    largest: Any = 127.5 if dtype == torch.int8 else reference.FP8_FORMATS[dtype].largest
    _encode[(1,)](x.to(DEVICE), scale.to(DEVICE), out, largest, power_of_two, ROWS, COLUMNS)
    return out.cpu()


def expected(x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    quotient = reference.quotient(x, scale)
    if dtype == torch.int8:
        return quotient.nan_to_num(nan=0.0).round().clamp(-128, 127).to(torch.int8)
    return reference.encode_fp8(quotient, dtype)


def ties(dtype: torch.dtype) -> torch.Tensor:
    """Between all neighbouring codes."""
    values = reference.decode(torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype))
    values = values[values.isfinite()].unique()
    return (values[1:] + values[:-1]) / 2


def near_ties(dtype: torch.dtype, scale: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Ties times the scale, and up to four units in the last place beside them; a few special values in each row."""
    every = ties(dtype)
    chosen = every[torch.randint(len(every), (ROWS, COLUMNS), generator=generator)]
    x = (chosen * scale.double()).float()
    beside = torch.randint(-4, 5, x.shape, generator=generator, dtype=torch.int32)
    x = torch.where(x.abs() > 1e-30, (x.view(torch.int32) + beside).view(torch.float32), x)
    x[:, : len(SPECIAL)] = torch.tensor(SPECIAL)
    return x


def assert_same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    nan = reference.decode(wanted).isnan()
    equal = found.view(torch.uint8) == wanted.view(torch.uint8)
    assert bool((equal | (nan & reference.decode(found).isnan())).all())


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("exponent", [-126, -125, -60, -1, 0, 1, 7, 60, 117, 126, 127])
def test_codes_near_ties_are_those_of_a_division(dtype: torch.dtype, exponent: int) -> None:
    generator = torch.Generator().manual_seed(exponent)
    significands = torch.randint(2**23, (ROWS, 1), generator=generator, dtype=torch.int32)
    significands[:3, 0] = torch.tensor([0, 1, 2**23 - 1])
    scale = (significands + ((exponent + 127) << 23)).view(torch.float32)
    x = near_ties(dtype, scale, generator)
    assert_same(encoded(x, scale, dtype), expected(x, scale, dtype))


@pytest.mark.parametrize("dtype", FORMATS[:2])
def test_a_scale_that_is_a_power_of_two_needs_no_quotient(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    scale = torch.ldexp(torch.ones(ROWS, 1), torch.arange(ROWS)[:, None] % 254 - 126)
    x = near_ties(dtype, scale, generator)
    assert_same(encoded(x, scale, dtype, power_of_two=True), expected(x, scale, dtype))


@pytest.mark.parametrize("dtype", FORMATS[:2])
def test_a_scale_that_is_no_number_gives_none(dtype: torch.dtype) -> None:
    scale = torch.ones(ROWS, 1)
    scale[::2], scale[1::2] = float("nan"), float("inf")
    x = near_ties(dtype, torch.ones(ROWS, 1), torch.Generator().manual_seed(0))
    assert_same(encoded(x, scale, dtype), expected(x, scale, dtype))


def test_products_and_sums_round_once() -> None:
    """What the quotient needs of `tl.fma`: rounding the product first would leave 0."""
    x = torch.full((ROWS, COLUMNS), 1 + 2.0**-12)
    out = torch.empty_like(x, device=DEVICE)
    _square_less_one[(1,)](x.to(DEVICE), out, ROWS * COLUMNS)
    assert bool((out == 2.0**-11 + 2.0**-24).all())


@triton.jit
def _square_less_one(x, out, size: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, size)
    value = tl.load(x + at)
    tl.store(out + at, tl.fma(value, value, value * 0.0 - 1.0))
