"""Encoding of weights to 4 bits, in Triton. Quotients are divided exactly: weights are encoded once."""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from policyquant.kernels.triton.encode import LARGEST_FLOAT, nearest_integer, scale_of
from policyquant.kernels.triton.launch import launch, target_of
from policyquant.kernels.triton.rows import as_rows
from policyquant.kernels.tuning import configuration

_FAMILY: Final = "int4_quantize"


@triton.jit
def _encode_groups(
    w, out, out_scale, out_zero_point, lines, K, groups, stride_row, stride_column,
    ASYMMETRIC: tl.constexpr, GROUP: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """BLOCK_M groups a program, in registers."""
    line = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    row, group = line // groups, line % groups
    column = group * GROUP + tl.arange(0, GROUP)[None, :]
    mask = (line < lines) & (column < K)
    value = tl.load(w + row * stride_row + column * stride_column, mask=mask, other=0.0).to(tl.float32)
    finite = tl.where(tl.abs(value) <= LARGEST_FLOAT, value, 0.0)
    low = tl.minimum(tl.min(finite, axis=1, keep_dims=True), 0.0)
    high = tl.maximum(tl.max(finite, axis=1, keep_dims=True), 0.0)
    if ASYMMETRIC:
        scale = scale_of(tl.minimum(high - low, LARGEST_FLOAT), 15.0, 0.0, False)
    else:
        scale = scale_of(tl.maximum(high, -low), 7.5, 0.0, False)
    stored = scale.to(out_scale.dtype.element_ty)
    tl.store(out_scale + line, stored, mask=line < lines)
    divisor = stored.to(tl.float32)
    quotient = tl.math.div_rn(value, tl.broadcast_to(divisor, value.shape))
    quotient = tl.where(quotient == quotient, quotient, 0.0)
    if ASYMMETRIC:
        zero_point = nearest_integer(tl.clamp(-8.0 - tl.math.div_rn(low, divisor), -8.0, 7.0))
        tl.store(out_zero_point + line, (zero_point + 8).to(tl.uint8), mask=line < lines)
        quotient += zero_point.to(tl.float32)
    codes = nearest_integer(tl.clamp(quotient, -8.0, 7.0)) + 8
    even, odd = tl.split(tl.reshape(tl.where(mask, codes, 0), (BLOCK_M, GROUP // 2, 2)))
    byte = group * (GROUP // 2) + tl.arange(0, GROUP // 2)[None, :]
    width = tl.cdiv(K, 2)
    tl.store(out + row * width + byte, (even | odd << 4).to(tl.uint8), mask=(line < lines) & (byte < width))


def int4_group_quant(
    w: torch.Tensor, group_size: int, scale_dtype: torch.dtype, *, out: torch.Tensor, out_scale: torch.Tensor
) -> None:
    """Packed codes and a scale for each group."""
    _encode(w, group_size, out, out_scale, None)


def asymmetric_int4_group_quant(
    w: torch.Tensor,
    group_size: int,
    scale_dtype: torch.dtype,
    *,
    out: torch.Tensor,
    out_scale: torch.Tensor,
    out_zero_point: torch.Tensor,
) -> None:
    """Packed codes, a scale and a zero point for each group."""
    _encode(w, group_size, out, out_scale, out_zero_point)


def _encode(
    w: torch.Tensor,
    group_size: int,
    out: torch.Tensor,
    out_scale: torch.Tensor,
    out_zero_point: torch.Tensor | None,
) -> None:
    rows = as_rows(w)
    lines = out_scale.numel()
    tuned = configuration(_FAMILY, target_of(w).capability, f"groups of {group_size}")
    launch(
        _encode_groups, (triton.cdiv(lines, tuned["BLOCK_M"]),), **tuned,
        w=rows, out=out, out_scale=out_scale, out_zero_point=out_zero_point, lines=lines, K=rows.shape[1],
        groups=out_scale.shape[-1], stride_row=rows.stride(0), stride_column=rows.stride(1),
        ASYMMETRIC=out_zero_point is not None, GROUP=group_size,
    )  # fmt: skip
