"""Products with the weights of several experts in Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from policyquant.kernels.cpu.grouped_mm import of_blocks
from policyquant.kernels.triton.expert_tiles import (
    aligned,
    expert_tile,
    place,
    shape_class,
    weight_scale_strides,
    with_unit_stride,
)
from policyquant.kernels.triton.launch import launch, target_of
from policyquant.kernels.tuning import configuration

_GROUP = 128


@triton.jit
def _grouped(
    a, b, scale_a, scale_b, offsets, bias, out, M, N, K, experts, tiles_m,
    stride_a, stride_b_expert, stride_b, scale_a_row, scale_a_group, scale_b_expert, scale_b_channel, scale_b_group,
    stride_offsets, bias_expert, bias_channel,
    GROUP: tl.constexpr, PROMOTED: tl.constexpr, SWAPPED: tl.constexpr, BINS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """One tile a program. Tiles are of one expert each; rows behind the last expert's are taken as another's."""
    tile_m, tile_n = place(tl.program_id(0), tiles_m, tl.cdiv(N, BLOCK_N), GROUP_M)
    bins = tl.arange(0, BINS)
    ends = tl.load(offsets + bins * stride_offsets, mask=bins < experts, other=M)
    starts = tl.load(offsets + (bins - 1) * stride_offsets, mask=(bins > 0) & (bins <= experts), other=0)
    ends, starts = tl.minimum(ends, M), tl.minimum(starts, M)
    lengths = tl.where(bins <= experts, tl.maximum(ends - starts, 0), 0)
    tiles = (lengths + BLOCK_M - 1) // BLOCK_M
    behind = tl.cumsum(tiles, axis=0)
    expert = tl.sum((behind <= tile_m).to(tl.int32), axis=0)
    if expert > experts:
        return
    own = bins == expert
    first = tl.sum(tl.where(own, starts + (tile_m - behind + tiles) * BLOCK_M, 0), axis=0)
    end = tl.sum(tl.where(own, ends, 0), axis=0)
    row, start_n = first + tl.arange(0, BLOCK_M), tile_n * BLOCK_N
    channel = start_n + tl.arange(0, BLOCK_N)
    stored = (row < end)[:, None] & (channel < N)[None, :]
    to = out + row.to(tl.int64)[:, None] * N + channel[None, :]
    if expert == experts:
        tl.store(to, tl.zeros((BLOCK_M, BLOCK_N), dtype=out.dtype.element_ty), mask=stored)
    else:
        # What lies beyond the expert's last row is computed from that row and not stored.
        sums = expert_tile(
            a, b, scale_a, scale_b, tl.minimum(row, end - 1).to(tl.int64), expert, start_n, N, K,
            stride_a, stride_b_expert, stride_b,
            scale_a_row, scale_a_group, scale_b_expert, scale_b_channel, scale_b_group,
            GROUP, PROMOTED, SWAPPED, BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip
        if bias is not None:
            at = bias + expert.to(tl.int64) * bias_expert + channel * bias_channel
            sums += tl.load(at, mask=channel < N, other=0.0).to(tl.float32)[None, :]
        tl.store(to, sums.to(out.dtype.element_ty), mask=stored)


def grouped_scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    offsets: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    out: torch.Tensor,
) -> None:
    """As the operator."""
    a, b = with_unit_stride(a), with_unit_stride(b)
    (rows, terms), (experts, channels, _) = a.shape, b.shape
    blocks = of_blocks(scale_b, b)
    name = shape_class(rows, experts, blocks)
    if not aligned(a, b):
        name = "unaligned, blocks" if blocks else "unaligned"
    chosen = configuration("grouped_mm", target_of(a).capability, name)
    tiles_m = rows // chosen["BLOCK_M"] + min(rows, experts + 1)
    launch(
        _grouped,
        (tiles_m * triton.cdiv(channels, chosen["BLOCK_N"]),),
        a=a,
        b=b,
        scale_a=scale_a,
        scale_b=scale_b,
        offsets=offsets,
        bias=bias,
        out=out,
        M=rows,
        N=channels,
        K=terms,
        experts=experts,
        tiles_m=tiles_m,
        stride_a=a.stride(0),
        stride_b_expert=b.stride(0),
        stride_b=b.stride(1),
        scale_a_row=scale_a.stride(0) if scale_a.numel() > 1 else 0,
        scale_a_group=scale_a.stride(1) if scale_a.ndim == 2 and scale_a.shape[1] > 1 else 0,
        **weight_scale_strides(scale_b, blocks),
        stride_offsets=offsets.stride(0),
        bias_expert=0 if bias is None else bias.stride(0),
        bias_channel=0 if bias is None else bias.stride(1),
        GROUP=_GROUP if blocks else 0,
        BINS=triton.next_power_of_2(experts + 1),
        **chosen,
    )
