"""Products of int8 codes with int8 codes, in Triton. Sums are int32, so their order does not matter.

For few rows the weight's channels take the place of rows (`SWAPPED`), as in `scaled_mm_tiles`, and K is split where
the tiles are too few for the GPU.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl

from policyquant.kernels.triton.launch import launch, target_of
from policyquant.kernels.triton.scaled_mm import aligned, readable, shape_class, splits
from policyquant.kernels.triton.scaled_mm_tiles import corner
from policyquant.kernels.tuning import configuration

_FAMILY: Final = "int8_mm"


@triton.jit
def _multiply(
    a, b, scale_a, scale_b, bias, zero_point, weight_sums, out, M, N, K, steps,
    stride_a, stride_b, stride_scale_a, stride_scale_b, stride_bias, stride_zero_point, stride_weight_sums,
    SPLIT: tl.constexpr, SWAPPED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """A tile of the product, or the part of it that `steps` steps along K give: out is [splits, M, N] int32 then."""
    split = tl.program_id(1)
    start_m, start_n = corner(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    row, channel = start_m + tl.arange(0, BLOCK_M), start_n + tl.arange(0, BLOCK_N)
    column = tl.arange(0, BLOCK_K)
    # What lies beyond the last row is computed from that row and not stored.
    from_row, from_channel = tl.minimum(row, M - 1).to(tl.int64), tl.minimum(channel, N - 1).to(tl.int64)
    at_a = a + from_row[:, None] * stride_a + column[None, :]
    at_b = b + from_channel[:, None] * stride_b + column[None, :]
    first = split * steps
    last = tl.minimum(first + steps, tl.cdiv(K, BLOCK_K))
    if SWAPPED:
        sums = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.int32)
    else:
        sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int32)
    for step in range(first, last):
        inside = column[None, :] < K - step * BLOCK_K
        x = tl.load(at_a + step * BLOCK_K, mask=inside, other=0)
        y = tl.load(at_b + step * BLOCK_K, mask=inside, other=0)
        if SWAPPED:
            x, y = y, x
        sums = tl.dot(x, y.T, sums, out_dtype=tl.int32)
    if SWAPPED:
        sums = sums.T
    stored = (row < M)[:, None] & (channel < N)[None, :]
    to = row.to(tl.int64)[:, None] * N + channel[None, :]
    if SPLIT:
        tl.store(out + split.to(tl.int64) * M * N + to, sums, mask=stored)
    else:
        result = _finished(
            sums, scale_a, scale_b, bias, zero_point, weight_sums, from_row, from_channel,
            stride_scale_a, stride_scale_b, stride_bias, stride_zero_point, stride_weight_sums, out.dtype.element_ty,
        )  # fmt: skip
        tl.store(out + to, result, mask=stored)


@triton.jit
def _add_parts(
    parts, scale_a, scale_b, bias, zero_point, weight_sums, out, M, N,
    stride_scale_a, stride_scale_b, stride_bias, stride_zero_point, stride_weight_sums,
    PARTS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """BLOCK_N results of one row, of the sums of all parts."""
    row, channel = tl.program_id(1).to(tl.int64), tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = channel < N
    sums = tl.zeros((BLOCK_N,), dtype=tl.int32)
    for part in tl.static_range(PARTS):
        sums += tl.load(parts + (part * M + row) * N + channel, mask=inside, other=0)
    rows = row + tl.zeros((1,), dtype=tl.int64)
    from_channel = tl.minimum(channel, N - 1).to(tl.int64)
    result = _finished(
        sums[None, :], scale_a, scale_b, bias, zero_point, weight_sums, rows, from_channel,
        stride_scale_a, stride_scale_b, stride_bias, stride_zero_point, stride_weight_sums, out.dtype.element_ty,
    )  # fmt: skip
    tl.store(out + rows[:, None] * N + channel[None, :], result, mask=inside[None, :])


@triton.jit
def _finished(
    sums, scale_a, scale_b, bias, zero_point, weight_sums, row, channel,
    stride_scale_a, stride_scale_b, stride_bias, stride_zero_point, stride_weight_sums, DTYPE: tl.constexpr,
):  # fmt: skip
    """Exact sums, with what the zero point adds taken off, times the scales, plus the bias."""
    if zero_point is not None:
        zero = tl.load(zero_point + row * stride_zero_point)
        sums -= zero[:, None] * tl.load(weight_sums + channel * stride_weight_sums)[None, :]
    of_a, of_b = tl.load(scale_a + row * stride_scale_a), tl.load(scale_b + channel * stride_scale_b)
    result = sums.to(tl.float32) * of_a[:, None] * of_b[None, :]
    if bias is not None:
        result += tl.load(bias + channel * stride_bias).to(tl.float32)[None, :]
    return result.to(DTYPE)


def scaled_int8_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None,
    zero_point: torch.Tensor | None,
    weight_sums: torch.Tensor | None,
    *,
    out: torch.Tensor,
) -> None:
    """As the operator."""
    a, b = readable(a, b)
    (rows, terms), channels = a.shape, b.shape[0]
    target = target_of(a)
    chosen = configuration(_FAMILY, target.capability, shape_class(rows) if aligned(a, b) else "unaligned")
    tiles = -(-rows // chosen["BLOCK_M"]) * -(-channels // chosen["BLOCK_N"])
    steps = -(-terms // chosen["BLOCK_K"])
    parts = splits(tiles, steps, target.multiprocessors)
    ending: dict[str, Any] = {
        "scale_a": scale_a,
        "scale_b": scale_b,
        "bias": bias,
        "zero_point": zero_point,
        "weight_sums": weight_sums,
        "M": rows,
        "N": channels,
        # A scale of all rows is read for each of them.
        "stride_scale_a": _stride(scale_a),
        "stride_scale_b": _stride(scale_b),
        "stride_bias": _stride(bias),
        "stride_zero_point": _stride(zero_point),
        "stride_weight_sums": _stride(weight_sums),
    }
    partial = out if parts == 1 else out.new_empty((parts, rows, channels), dtype=torch.int32)
    launch(
        _multiply, (tiles, parts), a=a, b=b, out=partial, K=terms, steps=-(-steps // parts),
        stride_a=a.stride(0), stride_b=b.stride(0), SPLIT=parts > 1, **ending, **chosen,
    )  # fmt: skip
    if parts > 1:
        tuned = configuration(_FAMILY, target.capability, "sum of parts")
        grid = (-(-channels // tuned["BLOCK_N"]), rows)
        launch(_add_parts, grid, parts=partial, out=out, PARTS=parts, **ending, **tuned)


def _stride(x: torch.Tensor | None) -> int:
    return 0 if x is None or x.numel() == 1 else x.stride(0)
