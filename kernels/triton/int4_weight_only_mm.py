"""Products of activations as they are with 4-bit weights, in Triton.

As in `weight_only_mm` the weight is the left operand, and K is split where the tiles are too few for the GPU. A step
along K lies within one group. Codes less zero points are integers of at most 4 bits and a sign, exact in every dtype of
activations, so that products are exact, and each step's sums are multiplied by its scales in float32.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl

from policyquant.kernels.triton.launch import launch, target_of
from policyquant.kernels.triton.weight_only_mm import add_parts, columns_of_part, shape_class
from policyquant.kernels.tuning import configuration

_FAMILY: Final = "int4_weight_only_mm"


@triton.jit
def _multiply(
    x, packed, scale, zero_point, bias, out, M, N, K, packed_columns, BYTES_OF_PART,
    stride_x_row, stride_x_column, stride_packed_row, stride_packed_column, stride_scale_row, stride_scale_column,
    stride_zero_row, stride_zero_column, stride_bias,
    PARTS: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """One tile of one part of K; `out` takes float32 parts [PARTS, M, N] if PARTS > 1."""
    tl.static_assert(GROUP % BLOCK_K == 0)
    # Programs that follow each other share the weight's rows, and GROUP_M tiles of x stay in the cache.
    tile, part = tl.program_id(0), tl.program_id(1)
    tiles_n = tl.cdiv(N, BLOCK_N)
    first_m = tile // (GROUP_M * tiles_n) * GROUP_M
    width = tl.minimum(tl.cdiv(M, BLOCK_M) - first_m, GROUP_M)
    within = tile % (GROUP_M * tiles_n)
    tile_m, tile_n = first_m + within % width, within // width

    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    k, byte = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_K // 2)
    rows, wide_k, wide_byte = n.to(tl.int64), k.to(tl.int64), byte.to(tl.int64)
    begin = part * BYTES_OF_PART
    x_at = x + m.to(tl.int64)[None, :] * stride_x_row + (begin * 2 + wide_k)[:, None] * stride_x_column
    packed_at = packed + rows[:, None] * stride_packed_row + (begin + wide_byte)[None, :] * stride_packed_column
    sums = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for start in range(begin, tl.minimum(begin + BYTES_OF_PART, packed_columns), BLOCK_K // 2):
        pairs = tl.load(packed_at, mask=(n < N)[:, None] & (byte < packed_columns - start)[None, :], other=0)
        packed_at += BLOCK_K // 2 * stride_packed_column
        given = tl.load(x_at, mask=(k < K - start * 2)[:, None] & (m < M)[None, :], other=0.0)
        x_at += BLOCK_K * stride_x_column
        group = tl.full((), start * 2 // GROUP, tl.int64)
        factor = tl.load(scale + rows * stride_scale_row + group * stride_scale_column, mask=n < N, other=0.0)
        codes = tl.interleave(pairs & 15, pairs >> 4).to(tl.int32)
        # The bits of 2**23 + code, of which 2**23 + the zero point is taken off.
        values = (codes | 0x4B000000).to(tl.float32, bitcast=True)
        if zero_point is None:
            values -= 8388616.0
        else:
            zero = tl.load(zero_point + rows * stride_zero_row + group * stride_zero_column, mask=n < N, other=0)
            values -= (zero.to(tl.float32) + 8388608.0)[:, None]
        product = tl.dot(values.to(given.dtype), given, input_precision="ieee")
        sums += product * factor.to(tl.float32)[:, None]
    if PARTS == 1 and bias is not None:
        sums += tl.load(bias + rows * stride_bias, mask=n < N, other=0.0).to(tl.float32)[:, None]
    at = (part.to(tl.int64) * M + m)[:, None] * N + n[None, :]
    tl.store(out + at, tl.trans(sums).to(out.dtype.element_ty), mask=(m < M)[:, None] & (n < N)[None, :])


def int4_weight_only_mm(
    x: torch.Tensor,
    packed: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor | None,
    group_size: int,
    bias: torch.Tensor | None,
    *,
    out: torch.Tensor,
) -> None:
    """x @ ((code - zero point) · scale).T + bias; parts of K in float32 where the tiles are few."""
    (m, k), n = x.shape, packed.shape[0]
    if not m * n:
        return
    target = target_of(x)
    tile: dict[str, Any] = dict(configuration(_FAMILY, target.capability, shape_class(x)))
    tile["BLOCK_K"] = min(tile["BLOCK_K"], group_size)
    tiles = -(-m // tile["BLOCK_M"]) * -(-n // tile["BLOCK_N"])
    of_part = columns_of_part(tiles, k, tile["BLOCK_K"], tile.pop("PROGRAMS") * target.multiprocessors)
    parts = max(1, -(-k // of_part))
    into = out if parts == 1 else x.new_empty((parts, m, n), dtype=torch.float32)
    stride_bias = 0 if bias is None else bias.stride(0)
    launch(
        _multiply, (tiles, parts), x=x, packed=packed, scale=scale, zero_point=zero_point, bias=bias, out=into,
        M=m, N=n, K=k, packed_columns=packed.shape[1], BYTES_OF_PART=of_part // 2,
        stride_x_row=x.stride(0), stride_x_column=x.stride(1),
        stride_packed_row=packed.stride(0), stride_packed_column=packed.stride(1),
        stride_scale_row=scale.stride(0), stride_scale_column=scale.stride(1),
        stride_zero_row=0 if zero_point is None else zero_point.stride(0),
        stride_zero_column=0 if zero_point is None else zero_point.stride(1),
        stride_bias=stride_bias, PARTS=parts, GROUP=group_size, **tile,
    )  # fmt: skip
    if parts > 1:
        block = min(1024, triton.next_power_of_2(n))
        launch(
            add_parts, (-(-n // block), m), parts=into, scale=scale, bias=bias, out=out, M=m, N=n,
            stride_scale_row=0, stride_bias=stride_bias, SCALES="block", PARTS=parts, BLOCK_N=block,
        )  # fmt: skip
