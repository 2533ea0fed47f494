"""Encoding of activations to int8, in Triton."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
import triton
import triton.language as tl

from policyquant.kernels.triton.encode import (
    LARGEST_FLOAT,
    SMALLEST_SCALE,
    encode_int8,
    nearest_integer,
    quotient,
    scale_of,
)
from policyquant.kernels.triton.launch import launch, target_of
from policyquant.kernels.triton.rows import as_rows, width_class
from policyquant.kernels.tuning import configuration

_FAMILY: Final = "int8_quantize"
_NARROWEST, _WIDEST = 128, 4096


@triton.jit
def _encoded(value, scale, zero_point, ASYMMETRIC: tl.constexpr):
    """Codes. Quotients beyond ± 512 saturate whatever the zero point is."""
    if ASYMMETRIC:
        steps = quotient(value, scale, 512.0)
        shifted = nearest_integer(tl.where(steps == steps, steps, 0.0)) + zero_point
        codes = tl.minimum(tl.maximum(shifted, -128), 127).to(tl.int8)
    else:
        codes = encode_int8(value, scale)
    return codes


@triton.jit
def _encode_rows(
    x, out, out_scale, out_zero_point, M, K, stride_row, stride_column,
    ASYMMETRIC: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """BLOCK_M rows a program, read twice in steps of BLOCK_N; the second time they come from a cache."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    known = row < M
    column = tl.arange(0, BLOCK_N)[None, :].to(tl.int64)
    at = x + row * stride_row
    low = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    high = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    nan = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_N):
        mask = known & (column < K - start)
        value = tl.load(at + (start + column) * stride_column, mask=mask, other=0.0).to(tl.float32)
        finite = tl.where(tl.abs(value) <= LARGEST_FLOAT, value, 0.0)
        low, high = tl.minimum(low, finite), tl.maximum(high, finite)
        nan = tl.maximum(nan, tl.where(value == value, 0.0, 1.0))
    smallest = tl.min(low, axis=1, keep_dims=True)
    largest = tl.max(high, axis=1, keep_dims=True)
    holds_nan = tl.max(nan, axis=1, keep_dims=True) > 0.0
    if ASYMMETRIC:
        scale = scale_of(tl.minimum(largest - smallest, LARGEST_FLOAT), 255.0, 0.0, False)
        exact = tl.clamp(-128.0 - tl.math.div_rn(smallest, scale), -128.0, 127.0)
        zero_point = tl.where(holds_nan, 0, nearest_integer(exact))
        tl.store(out_zero_point + row, zero_point, mask=known)
    else:
        scale = scale_of(tl.maximum(largest, -smallest), 127.0, 0.0, False)
        zero_point = 0
    scale = tl.where(holds_nan, float("nan"), scale)
    tl.store(out_scale + row, scale, mask=known)
    for start in range(0, K, BLOCK_N):
        mask = known & (column < K - start)
        value = tl.load(at + (start + column) * stride_column, mask=mask, other=0.0)
        tl.store(out + row * K + start + column, _encoded(value, scale, zero_point, ASYMMETRIC), mask=mask)


@triton.jit
def _encode_by_scale(
    x, scale, zero_point, out, M, K, stride_row, stride_column, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """One tile a program."""
    across = tl.cdiv(K, BLOCK_N)
    tile = tl.program_id(0)
    row = (tile // across).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    column = (tile % across).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    mask = (row < M) & (column < K)
    value = tl.load(x + row * stride_row + column * stride_column, mask=mask, other=0.0)
    known = tl.maximum(tl.load(scale), SMALLEST_SCALE, propagate_nan=tl.PropagateNan.ALL)
    if zero_point is None:
        codes = _encoded(value, known, 0, False)
    else:
        codes = _encoded(value, known, tl.load(zero_point), True)
    tl.store(out + row * K + column, codes, mask=mask)


def per_token_int8_quant(x: torch.Tensor, *, out: torch.Tensor, out_scale: torch.Tensor) -> None:
    """Codes and a scale for each row."""
    _rows_with_scales(x, out, out_scale, None)


def asymmetric_per_token_int8_quant(
    x: torch.Tensor, *, out: torch.Tensor, out_scale: torch.Tensor, out_zero_point: torch.Tensor
) -> None:
    """Codes, a scale and a zero point for each row."""
    _rows_with_scales(x, out, out_scale, out_zero_point)


def static_scaled_int8_quant(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None, *, out: torch.Tensor
) -> None:
    """Codes by one scale."""
    rows = as_rows(x) if x.ndim else x.reshape(1, 1)
    m, k = rows.shape
    tuned = _configuration(x, f"row {width_class(k, _NARROWEST, _WIDEST)}")
    launch(
        _encode_by_scale, (triton.cdiv(m, tuned["BLOCK_M"]) * triton.cdiv(k, tuned["BLOCK_N"]),), **tuned,
        x=rows, scale=scale, zero_point=zero_point, out=out, M=m, K=k,
        stride_row=rows.stride(0), stride_column=rows.stride(1),
    )  # fmt: skip


def _rows_with_scales(
    x: torch.Tensor, out: torch.Tensor, out_scale: torch.Tensor, out_zero_point: torch.Tensor | None
) -> None:
    rows = as_rows(x)
    m, k = rows.shape
    tuned = _configuration(x, f"row {width_class(k, _NARROWEST, _WIDEST)}")
    launch(
        _encode_rows, (triton.cdiv(m, tuned["BLOCK_M"]),), **tuned,
        x=rows, out=out, out_scale=out_scale, out_zero_point=out_zero_point, M=m, K=k,
        stride_row=rows.stride(0), stride_column=rows.stride(1), ASYMMETRIC=out_zero_point is not None,
    )  # fmt: skip


def _configuration(x: torch.Tensor, shape_class: str) -> Mapping[str, Any]:
    return configuration(_FAMILY, target_of(x).capability, shape_class)
