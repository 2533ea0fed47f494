"""RMS norm in Triton, with the residual addition that precedes it and the encoding to FP8 that follows it.

All operators share two kernels: one keeps rows in registers, one goes through a longer row in steps, and reads it again
for each of them. What a result is, `OUTPUT` says: "plain", or codes with a scale "static", "per token", "per group".
"""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl

from policyquant.kernels.triton.encode import (
    SMALLEST_SCALE,
    encode,
    encode_by_power_of_two,
    finite_magnitude,
    next_power_of_two,
    scale_of,
)
from policyquant.kernels.triton.launch import launch, target_of
from policyquant.kernels.triton.rows import as_rows, width_class
from policyquant.kernels.tuning import configuration

_FAMILY: Final = "norm"
_NARROWEST, _WIDEST_ROW = 128, 16384
_TRITON: Final = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


@triton.jit
def _load(x, residual, rows, columns, mask, stride_x_row, stride_x_column, stride_residual_row, stride_residual_column):
    """x, or x + residual rounded to the dtype of x; zeros outside the mask."""
    rows, columns = rows.to(tl.int64), columns.to(tl.int64)
    value = tl.load(x + rows * stride_x_row + columns * stride_x_column, mask=mask, other=0.0)
    if residual is not None:
        at = rows * stride_residual_row + columns * stride_residual_column
        added = tl.load(residual + at, mask=mask, other=0.0)
        value = (value.to(tl.float32) + added.to(tl.float32)).to(value.dtype)
    return value


@triton.jit
def _weighted(x, inverse, weight, DTYPE: tl.constexpr):
    """x / rms, rounded to the dtype of x, then times the weight."""
    normalized = (x.to(tl.float32) * inverse).to(x.dtype)
    return (normalized.to(tl.float32) * weight.to(tl.float32)).to(DTYPE)


@triton.jit
def _norm_in_registers(
    x, residual, weight, out, out_scale, out_residual, scale, scale_ub, eps, M, N, groups,
    stride_x_row, stride_x_column, stride_residual_row, stride_residual_column, stride_weight,
    stride_scale_row, stride_scale_group,
    OUTPUT: tl.constexpr, DTYPE: tl.constexpr, LARGEST: tl.constexpr, BOUNDED: tl.constexpr,
    POWER_OF_TWO: tl.constexpr, GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """BLOCK_M whole rows a program."""
    row, column = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N)
    rows, columns = row[:, None], column[None, :]
    mask = (rows < M) & (columns < N)
    at = rows.to(tl.int64) * N + columns
    value = _load(
        x, residual, rows, columns, mask, stride_x_row, stride_x_column, stride_residual_row, stride_residual_column
    )
    if out_residual is not None:
        tl.store(out_residual + at, value, mask=mask)
    factor = tl.load(weight + column.to(tl.int64) * stride_weight, mask=column < N, other=0.0)
    wide = value.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(wide * wide, axis=1) / N + eps)
    y = _weighted(value, inverse[:, None], factor[None, :], DTYPE)
    if OUTPUT == "plain":
        tl.store(out + at, y, mask=mask)
    elif OUTPUT == "static":
        known = tl.maximum(tl.load(scale), SMALLEST_SCALE, propagate_nan=tl.PropagateNan.ALL)
        tl.store(out + at, encode(y, known, LARGEST, out.dtype.element_ty), mask=mask)
    elif OUTPUT == "per token":
        own = scale_of(tl.max(finite_magnitude(y), axis=1), LARGEST, scale_ub, BOUNDED)
        tl.store(out_scale + row, own, mask=row < M)
        tl.store(out + at, encode(y, own[:, None], LARGEST, out.dtype.element_ty), mask=mask)
    else:
        grouped = tl.reshape(y, (BLOCK_M, BLOCK_N // GROUP, GROUP))
        own = scale_of(tl.max(finite_magnitude(grouped), axis=2), LARGEST, scale_ub, BOUNDED)
        if POWER_OF_TWO:
            own = next_power_of_two(own)
            codes = encode_by_power_of_two(grouped, own[:, :, None], LARGEST, out.dtype.element_ty)
        else:
            codes = encode(grouped, own[:, :, None], LARGEST, out.dtype.element_ty)
        tl.store(out + at, tl.reshape(codes, (BLOCK_M, BLOCK_N)), mask=mask)
        group = tl.arange(0, BLOCK_N // GROUP)[None, :]
        to = rows.to(tl.int64) * stride_scale_row + group.to(tl.int64) * stride_scale_group
        tl.store(out_scale + to, own, mask=(rows < M) & (group < groups))


@triton.jit
def _norm_in_steps(
    x, residual, weight, out, out_scale, out_residual, scale, scale_ub, eps, M, N, groups,
    stride_x_row, stride_x_column, stride_residual_row, stride_residual_column, stride_weight,
    stride_scale_row, stride_scale_group,
    OUTPUT: tl.constexpr, DTYPE: tl.constexpr, LARGEST: tl.constexpr, BOUNDED: tl.constexpr,
    POWER_OF_TWO: tl.constexpr, GROUP: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One row a program."""
    row = tl.program_id(0)
    rows = row + tl.zeros((1, 1), tl.int32)
    within = tl.arange(0, BLOCK_N)[None, :]
    squares = tl.zeros((1, BLOCK_N), tl.float32)
    for start in range(0, N, BLOCK_N):
        columns = start + within
        mask = columns < N
        value = _load(
            x, residual, rows, columns, mask, stride_x_row, stride_x_column, stride_residual_row, stride_residual_column
        )
        if out_residual is not None:
            tl.store(out_residual + rows.to(tl.int64) * N + columns, value, mask=mask)
        wide = value.to(tl.float32)
        squares += wide * wide
    inverse = tl.rsqrt(tl.sum(squares, axis=1) / N + eps)[:, None]

    if OUTPUT == "static":
        own = tl.maximum(tl.load(scale), SMALLEST_SCALE, propagate_nan=tl.PropagateNan.ALL)
    elif OUTPUT == "per token":
        largest = tl.zeros((1, BLOCK_N), tl.float32)
        for start in range(0, N, BLOCK_N):
            columns = start + within
            mask = columns < N
            value = _load(
                x, residual, rows, columns, mask,
                stride_x_row, stride_x_column, stride_residual_row, stride_residual_column,
            )  # fmt: skip
            factor = tl.load(weight + columns.to(tl.int64) * stride_weight, mask=mask, other=0.0)
            largest = tl.maximum(largest, finite_magnitude(_weighted(value, inverse, factor, DTYPE)))
        amax = tl.max(tl.max(largest, axis=1), axis=0)
        own = scale_of(amax, LARGEST, scale_ub, BOUNDED)
        tl.store(out_scale + row, own)

    for start in range(0, N, BLOCK_N):
        columns = start + within
        mask = columns < N
        value = _load(
            x, residual, rows, columns, mask, stride_x_row, stride_x_column, stride_residual_row, stride_residual_column
        )
        factor = tl.load(weight + columns.to(tl.int64) * stride_weight, mask=mask, other=0.0)
        y = _weighted(value, inverse, factor, DTYPE)
        at = rows.to(tl.int64) * N + columns
        if OUTPUT == "plain":
            tl.store(out + at, y, mask=mask)
        elif OUTPUT == "per group":
            grouped = tl.reshape(y, (BLOCK_N // GROUP, GROUP))
            own = scale_of(tl.max(finite_magnitude(grouped), axis=1), LARGEST, scale_ub, BOUNDED)
            if POWER_OF_TWO:
                own = next_power_of_two(own)
                codes = encode_by_power_of_two(grouped, own[:, None], LARGEST, out.dtype.element_ty)
            else:
                codes = encode(grouped, own[:, None], LARGEST, out.dtype.element_ty)
            tl.store(out + at, tl.reshape(codes, (1, BLOCK_N)), mask=mask)
            group = start // GROUP + tl.arange(0, BLOCK_N // GROUP)
            to = row.to(tl.int64) * stride_scale_row + group.to(tl.int64) * stride_scale_group
            tl.store(out_scale + to, own, mask=group < groups)
        else:
            tl.store(out + at, encode(y, own, LARGEST, out.dtype.element_ty), mask=mask)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, *, out: torch.Tensor) -> None:
    """x / rms(x) · weight."""
    _launch(x, None, weight, eps, out, None, "plain")


def fused_add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    out: torch.Tensor,
    out_residual: torch.Tensor,
) -> None:
    """The norm of x + residual, and that sum."""
    _launch(x, residual, weight, eps, out, out_residual, "plain")


def rms_norm_static_fp8_quant(
    x: torch.Tensor, weight: torch.Tensor, eps: float, scale: torch.Tensor, *, out: torch.Tensor
) -> None:
    """Codes of the norm under one scale that is given."""
    _launch(x, None, weight, eps, out, None, "static", scale=scale)


def fused_add_rms_norm_static_fp8_quant(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    scale: torch.Tensor,
    *,
    out: torch.Tensor,
    out_residual: torch.Tensor,
) -> None:
    """Codes of the norm of x + residual under one scale that is given, and that sum."""
    _launch(x, residual, weight, eps, out, out_residual, "static", scale=scale)


def rms_norm_per_token_fp8_quant(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    scale_ub: float | None,
    *,
    out: torch.Tensor,
    out_scale: torch.Tensor,
) -> None:
    """Codes of the norm and a scale for each row."""
    _launch(x, None, weight, eps, out, None, "per token", out_scale=out_scale, scale_ub=scale_ub)


def fused_add_rms_norm_per_token_fp8_quant(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    scale_ub: float | None,
    *,
    out: torch.Tensor,
    out_scale: torch.Tensor,
    out_residual: torch.Tensor,
) -> None:
    """Codes of the norm of x + residual, a scale for each row, and that sum."""
    _launch(x, residual, weight, eps, out, out_residual, "per token", out_scale=out_scale, scale_ub=scale_ub)


def rms_norm_group_fp8_quant(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    group_size: int,
    column_major: bool,
    power_of_two: bool,
    *,
    out: torch.Tensor,
    out_scale: torch.Tensor,
) -> None:
    """Codes of the norm and a scale for each group of a row."""
    _launch(
        x, None, weight, eps, out, None, "per group", out_scale=out_scale, group=group_size, power_of_two=power_of_two
    )


def fused_add_rms_norm_group_fp8_quant(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    group_size: int,
    column_major: bool,
    power_of_two: bool,
    *,
    out: torch.Tensor,
    out_scale: torch.Tensor,
    out_residual: torch.Tensor,
) -> None:
    """Codes of the norm of x + residual, a scale for each group of a row, and that sum."""
    _launch(
        x, residual, weight, eps, out, out_residual, "per group",
        out_scale=out_scale, group=group_size, power_of_two=power_of_two,
    )  # fmt: skip


def _launch(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor,
    out_residual: torch.Tensor | None,
    output: str,
    *,
    scale: torch.Tensor | None = None,
    out_scale: torch.Tensor | None = None,
    scale_ub: float | None = None,
    group: int = 1,
    power_of_two: bool = False,
) -> None:
    n = x.shape[-1]
    rows, added = as_rows(x), None if residual is None else as_rows(residual)
    scales = None if out_scale is None else as_rows(out_scale)
    width = width_class(n, max(_NARROWEST, group), _WIDEST_ROW)
    shape_class = f"row {width}" if n <= _WIDEST_ROW else "in steps"
    tuned: dict[str, Any] = dict(configuration(_FAMILY, target_of(x).capability, shape_class))
    launch(
        _norm_in_registers if n <= _WIDEST_ROW else _norm_in_steps,
        (triton.cdiv(rows.shape[0], tuned.get("BLOCK_M", 1)),),
        x=rows,
        residual=added,
        weight=weight,
        out=out,
        out_scale=scales,
        out_residual=out_residual,
        scale=scale,
        scale_ub=0.0 if scale_ub is None else scale_ub,
        eps=eps,
        M=rows.shape[0],
        N=n,
        groups=0 if scales is None else scales.shape[1],
        stride_x_row=rows.stride(0),
        stride_x_column=rows.stride(1),
        stride_residual_row=0 if added is None else added.stride(0),
        stride_residual_column=0 if added is None else added.stride(1),
        stride_weight=weight.stride(0),
        stride_scale_row=0 if scales is None else scales.stride(0),
        stride_scale_group=0 if scales is None else scales.stride(1),
        OUTPUT=output,
        DTYPE=_TRITON[torch.promote_types(x.dtype, weight.dtype)],
        LARGEST=0.0 if output == "plain" else torch.finfo(out.dtype).max,
        BOUNDED=scale_ub is not None,
        POWER_OF_TWO=power_of_two,
        GROUP=group,
        **tuned,
    )
