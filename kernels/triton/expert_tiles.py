"""A tile of an expert's product, which `grouped_scaled_mm` and `fused_moe` share.

What is said in `scaled_mm_tiles` of swapped operands and of sums that leave the tensor cores holds here too.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_SIZES = (16, 32, 64, 128)
_WIDE = 16


def shape_class(rows: int, experts: int, blocks: bool) -> str:
    """What the tables call products in which each expert has so many rows if all have as many."""
    each = -(-rows // max(1, experts))
    name = next((f"{most} rows" for most in _SIZES if each <= most), "many rows")
    return f"{name}, blocks" if blocks else name


def aligned(*operands: torch.Tensor) -> bool:
    """Whether all rows start at multiples of 16 bytes of FP8 and end there, so that loads are wide."""
    return not any(
        size % _WIDE for each in operands for size in (each.shape[-1], each.storage_offset(), *each.stride()[:-1])
    )


def with_unit_stride(x: torch.Tensor) -> torch.Tensor:
    """Tensor cores read rows of FP8; what lies otherwise is copied."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def weight_scale_strides(scale: torch.Tensor, blocks: bool) -> dict[str, int]:
    """From expert to expert, from channel (or block of channels) to channel, and from block to block of columns."""
    channel = scale.stride(1) if scale.ndim == 3 else 0
    return {
        "scale_b_expert": scale.stride(0),
        "scale_b_channel": channel,
        "scale_b_group": scale.stride(2) if blocks else 0,
    }


@triton.jit
def place(tile, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """The tile's row and column of tiles: GROUP_M that read the same channels follow each other."""
    first = tile // (GROUP_M * tiles_n) * GROUP_M
    height = tl.minimum(tiles_m - first, GROUP_M)
    within = tile % (GROUP_M * tiles_n)
    return first + within % height, within // height


@triton.jit
def expert_tile(
    a, b, scale_a, scale_b, row, expert, start_n, N, K,
    stride_a, stride_b_expert, stride_b, scale_a_row, scale_a_group, scale_b_expert, scale_b_channel, scale_b_group,
    GROUP: tl.constexpr, PROMOTED: tl.constexpr, SWAPPED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Float32 [BLOCK_M, BLOCK_N], scales applied: rows `row` (int64) of a times channels from start_n of b[expert].

    a and b have unit stride along K. `GROUP` is 0 for scales of rows, channels or experts, else that of blocks.
    """
    expert = expert.to(tl.int64)
    channel, column = start_n + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    # What lies beyond the last channel is computed from that one and not stored.
    from_channel = tl.minimum(channel, N - 1).to(tl.int64)
    at_a = a + row[:, None] * stride_a + column[None, :]
    at_b = b + expert * stride_b_expert + from_channel[:, None] * stride_b + column[None, :]
    at_scale_a = scale_a + row * scale_a_row
    at_scale_b = scale_b + expert * scale_b_expert
    if GROUP:
        tl.static_assert(GROUP == BLOCK_K and GROUP % BLOCK_N == 0)
        at_scale_b += (start_n // GROUP).to(tl.int64) * scale_b_channel
    if SWAPPED:
        sums = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    else:
        sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(tl.cdiv(K, BLOCK_K)):
        inside = column[None, :] < K - step * BLOCK_K
        x = tl.load(at_a + step * BLOCK_K, mask=inside, other=0.0)
        y = tl.load(at_b + step * BLOCK_K, mask=inside, other=0.0)
        if SWAPPED:
            x, y = y, x
        if GROUP:
            scale = tl.load(at_scale_a) * tl.load(at_scale_b)
            at_scale_a += scale_a_group
            at_scale_b += scale_b_group
            if SWAPPED:
                sums += tl.dot(x, y.T) * scale[None, :]
            else:
                sums += tl.dot(x, y.T) * scale[:, None]
        elif PROMOTED:
            # The bound keeps the compiler from summing inside the tensor cores after all.
            sums += tl.dot(x, y.T, max_num_imprecise_acc=BLOCK_K)
        else:
            sums = tl.dot(x, y.T, sums)
    if SWAPPED:
        sums = sums.T
    if GROUP == 0:
        of_channels = tl.load(at_scale_b + from_channel * scale_b_channel)
        sums = sums * tl.load(at_scale_a)[:, None] * of_channels[None, :]
    return sums
