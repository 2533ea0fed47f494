"""The kernels of `scaled_mm` and `block_scaled_mm`: one that multiplies tiles, one that adds up what was split.

Tensor cores multiply FP8 for tiles of at least 64 rows, so for few tokens the weight's channels take the place of rows
(`SWAPPED`). On compute capability 8.9 and 9.0 they keep about 14 bits of a sum, so what they sum over `BLOCK_K` columns
is added in float32 (`PROMOTED`); with scales of blocks that happens of itself.
"""

from __future__ import annotations

import triton
import triton.language as tl

from policyquant.kernels.triton.encode import SMALLEST_SCALE, encode


@triton.jit
def product(
    a, b, scale_a, scale_b, bias, scale_result, out, M, N, K, steps,
    stride_a, stride_b, stride_scale_a, stride_scale_a_group, stride_scale_b, stride_scale_b_group, stride_bias,
    GROUP: tl.constexpr, LARGEST: tl.constexpr, SPLIT: tl.constexpr, PROMOTED: tl.constexpr, SWAPPED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """A tile [BLOCK_M, BLOCK_N] of the product, or the part of it that `steps` steps along K give.

    a [M, K] and b [N, K] have unit stride along K. `GROUP` is 0 for scales of tensors or rows, or the columns that
    share a scale of a; they are BLOCK_K columns, as many as the channels that share one of b. With `SPLIT`, out is
    [splits, M, N] float32 and neither scales of rows nor bias are applied.
    """
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

    if GROUP:
        tl.static_assert(GROUP == BLOCK_K and GROUP % BLOCK_N == 0)
        at_scale_a = scale_a + from_row * stride_scale_a
        at_scale_b = scale_b + (start_n // GROUP).to(tl.int64) * stride_scale_b
        # Scales are read a step ahead of their use.
        scale = tl.zeros((BLOCK_M,), dtype=tl.float32)
        if first < last:
            scale = _scales(at_scale_a, at_scale_b, first, stride_scale_a_group, stride_scale_b_group)
    if SWAPPED:
        sums = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    else:
        sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(first, last):
        inside = column[None, :] < K - step * BLOCK_K
        x = tl.load(at_a + step * BLOCK_K, mask=inside, other=0.0)
        y = tl.load(at_b + step * BLOCK_K, mask=inside, other=0.0)
        if SWAPPED:
            x, y = y, x
        if GROUP:
            scale_now, following = scale, tl.minimum(step + 1, last - 1)
            scale = _scales(at_scale_a, at_scale_b, following, stride_scale_a_group, stride_scale_b_group)
            if SWAPPED:
                sums += tl.dot(x, y.T) * scale_now[None, :]
            else:
                sums += tl.dot(x, y.T) * scale_now[:, None]
        elif PROMOTED:
            # The bound keeps the compiler from summing inside the tensor cores after all.
            sums += tl.dot(x, y.T, max_num_imprecise_acc=BLOCK_K)
        else:
            sums = tl.dot(x, y.T, sums)
    if SWAPPED:
        sums = sums.T

    stored = (row < M)[:, None] & (channel < N)[None, :]
    to = row.to(tl.int64)[:, None] * N + channel[None, :]
    if SPLIT:
        tl.store(out + split.to(tl.int64) * M * N + to, sums, mask=stored)
    else:
        if GROUP == 0:
            sums = _scaled_by_rows(sums, scale_a, scale_b, from_row, from_channel, stride_scale_a, stride_scale_b)
        result = _finished(sums, bias, scale_result, from_channel, stride_bias, LARGEST, out.dtype.element_ty)
        tl.store(out + to, result, mask=stored)


@triton.jit
def corner(tile, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """The first row and the first channel of a tile.

    GROUP_M tiles that read the same channels follow each other, so that these are still in the L2 cache.
    """
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    first = tile // (GROUP_M * tiles_n) * GROUP_M
    height = tl.minimum(tiles_m - first, GROUP_M)
    within = tile % (GROUP_M * tiles_n)
    return (first + within % height) * BLOCK_M, within // height * BLOCK_N


@triton.jit
def summation(
    partial, scale_a, scale_b, bias, scale_result, out, M, N, stride_scale_a, stride_scale_b, stride_bias,
    GROUP: tl.constexpr, LARGEST: tl.constexpr, SPLITS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The sum of SPLITS products [M, N], in their order, then what `product` does at its end. One row a program."""
    row, channel = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = channel < N
    sums = tl.zeros((BLOCK_N,), dtype=tl.float32)
    for split in tl.static_range(SPLITS):
        sums += tl.load(partial + (split * M + row) * N + channel, mask=inside, other=0.0)
    rows = row + tl.zeros((1,), dtype=tl.int64)
    from_channel = tl.minimum(channel, N - 1).to(tl.int64)
    sums = sums[None, :]
    if GROUP == 0:
        sums = _scaled_by_rows(sums, scale_a, scale_b, rows, from_channel, stride_scale_a, stride_scale_b)
    result = _finished(sums, bias, scale_result, from_channel, stride_bias, LARGEST, out.dtype.element_ty)
    tl.store(out + rows[:, None] * N + channel[None, :], result, mask=inside[None, :])


@triton.jit
def _scales(at_scale_a, at_scale_b, step, stride_a, stride_b):
    """The scales of a in a step, times that of b."""
    group = step.to(tl.int64)
    return tl.load(at_scale_a + group * stride_a) * tl.load(at_scale_b + group * stride_b)


@triton.jit
def _scaled_by_rows(sums, scale_a, scale_b, row, channel, stride_scale_a, stride_scale_b):
    of_a, of_b = tl.load(scale_a + row * stride_scale_a), tl.load(scale_b + channel * stride_scale_b)
    return sums * of_a[:, None] * of_b[None, :]


@triton.jit
def _finished(sums, bias, scale_result, channel, stride_bias, LARGEST: tl.constexpr, DTYPE: tl.constexpr):
    """Sums with the bias, in the dtype of the result; `LARGEST` is the largest value of an FP8 one."""
    if bias is not None:
        sums += tl.load(bias + channel * stride_bias).to(tl.float32)[None, :]
    if scale_result is not None:
        scale = tl.maximum(tl.load(scale_result), SMALLEST_SCALE, propagate_nan=tl.PropagateNan.ALL)
        return encode(sums, scale, LARGEST, DTYPE)
    if LARGEST is not None:
        sums = tl.clamp(sums, -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)
    return sums.to(DTYPE)
