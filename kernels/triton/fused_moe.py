"""A mixture of experts in Triton, in five launches: alignment and codes of x, w13, activation and codes, w2, sums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from policyquant.kernels.cpu.grouped_mm import of_blocks
from policyquant.kernels.operators.routing import aligned_blocks
from policyquant.kernels.triton.activation import gated
from policyquant.kernels.triton.encode import SMALLEST_SCALE, encode, finite_magnitude, scale_of
from policyquant.kernels.triton.expert_tiles import (
    aligned,
    expert_tile,
    place,
    shape_class,
    weight_scale_strides,
    with_unit_stride,
)
from policyquant.kernels.triton.launch import launch, target_of
from policyquant.kernels.triton.routing import align_arguments, align_expert, expert_of
from policyquant.kernels.tuning import configuration

_GROUP = 128
_WIDEST = 2048
_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


@triton.jit
def _values(x, row, columns, width, stride_row, stride_column, ACTIVATION: tl.constexpr):
    """Columns of a row of x, or of act(gate) · up, each rounded to the dtype of x = [gate | up]."""
    inside = columns < width
    at = x + row * stride_row + columns * stride_column
    value = tl.load(at, mask=inside, other=0.0)
    if ACTIVATION != "none":
        up = tl.load(at + width * stride_column, mask=inside, other=0.0)
        value = gated(value, up, ACTIVATION)
    return value


@triton.jit
def _encode_row(
    x, row, to_row, width, stride_row, stride_column, static, out, out_scale, scale_ub,
    ACTIVATION: tl.constexpr, SCALES: tl.constexpr, BOUNDED: tl.constexpr, LARGEST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Codes of a row (int64) of x and their scales, to row `to_row`; `static` is the scale if that is given."""
    within = tl.arange(0, BLOCK)
    if SCALES == "token":
        largest = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, width, BLOCK):
            value = _values(x, row, start + within, width, stride_row, stride_column, ACTIVATION)
            largest = tl.maximum(largest, finite_magnitude(value))
        static = scale_of(tl.max(largest, axis=0), LARGEST, scale_ub, BOUNDED)
    if SCALES != "group":
        tl.store(out_scale + to_row, static)
    for start in range(0, width, BLOCK):
        columns = start + within
        value = _values(x, row, columns, width, stride_row, stride_column, ACTIVATION)
        if SCALES == "group":
            groups = tl.reshape(value, (BLOCK // 128, 128))
            scale = scale_of(tl.max(finite_magnitude(groups), axis=1), LARGEST, scale_ub, BOUNDED)
            number = start // 128 + tl.arange(0, BLOCK // 128)
            wide = tl.cdiv(width, 128)
            tl.store(out_scale + to_row * wide + number, scale, mask=number < wide)
            codes = tl.reshape(encode(groups, scale[:, None], LARGEST, out.dtype.element_ty), (BLOCK,))
        else:
            codes = encode(value, static, LARGEST, out.dtype.element_ty)
        tl.store(out + to_row * width + columns, codes, mask=columns < width)


@triton.jit
def _static_scale(scale, expert, stride):
    """That of an expert, at least 2**-126."""
    return tl.maximum(tl.load(scale + expert * stride), SMALLEST_SCALE, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _align_and_encode(
    x, x_scale, codes, code_scale, width, stride_row, stride_column, x_scale_stride, scale_ub,
    ids, ids_row, ids_column, expert_map, map_stride, known, experts, total, blocks,
    sorted_ids, expert_ids, num_padded,
    OF_PAIRS: tl.constexpr, SCALES: tl.constexpr, BOUNDED: tl.constexpr, LARGEST: tl.constexpr, WIDE: tl.constexpr,
    CHOICES: tl.constexpr, MAPPED: tl.constexpr, BLOCK: tl.constexpr, BLOCK_FILL: tl.constexpr,
    BINS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The first programs are those of `moe_align`; each other one encodes a token, or with `OF_PAIRS` a pair."""
    program = tl.program_id(0)
    if program <= experts:
        align_expert(
            program, ids, ids_row, ids_column, expert_map, map_stride, known, experts, total, blocks,
            sorted_ids, expert_ids, num_padded, CHOICES, MAPPED, BLOCK, BLOCK_FILL, BINS, CHUNK,
        )  # fmt: skip
    else:
        to_row = program - experts - 1
        row = to_row
        static = 1.0
        if OF_PAIRS:
            row = to_row // CHOICES
            expert = expert_of(
                ids, to_row, to_row < total, ids_row, ids_column, expert_map, map_stride, known, experts,
                CHOICES, MAPPED,
            )  # fmt: skip
            static = _static_scale(x_scale, tl.minimum(expert, experts - 1), x_scale_stride)
        elif SCALES == "tensor":
            static = _static_scale(x_scale, 0, 0)
        _encode_row(
            x, row.to(tl.int64), to_row.to(tl.int64), width, stride_row, stride_column, static, codes, code_scale,
            scale_ub, "none", SCALES, BOUNDED, LARGEST, WIDE,
        )  # fmt: skip


@triton.jit
def _activate_and_encode(
    x, scale, codes, code_scale, width, scale_stride, scale_ub,
    ids, ids_row, ids_column, expert_map, map_stride, known, experts, total,
    ACTIVATION: tl.constexpr, SCALES: tl.constexpr, BOUNDED: tl.constexpr, LARGEST: tl.constexpr, WIDE: tl.constexpr,
    CHOICES: tl.constexpr, MAPPED: tl.constexpr,
):  # fmt: skip
    """One pair a program; those of nobody here are left as they are."""
    pair = tl.program_id(0)
    expert = expert_of(
        ids, pair, pair < total, ids_row, ids_column, expert_map, map_stride, known, experts, CHOICES, MAPPED
    )
    if expert < experts:
        static = 1.0
        if SCALES == "tensor":
            static = _static_scale(scale, expert, scale_stride)
        row = pair.to(tl.int64)
        _encode_row(
            x, row, row, width, 2 * width, 1, static, codes, code_scale, scale_ub,
            ACTIVATION, SCALES, BOUNDED, LARGEST, WIDE,
        )  # fmt: skip


@triton.jit
def _multiply(
    a, b, scale_a, scale_b, sorted_ids, expert_ids, num_padded, out, N, K, total, tiles_m,
    stride_a, stride_b_expert, stride_b, scale_a_row, scale_a_group, scale_b_expert, scale_b_channel, scale_b_group,
    ROWS_OF: tl.constexpr, GROUP: tl.constexpr, PROMOTED: tl.constexpr, SWAPPED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """One tile a program: the pairs of a block times channels of its expert. ROWS_OF pairs share a row of a."""
    tile_m, tile_n = place(tl.program_id(0), tiles_m, tl.cdiv(N, BLOCK_N), GROUP_M)
    if tile_m * BLOCK_M >= tl.load(num_padded):
        return
    expert = tl.load(expert_ids + tile_m)
    pair = tl.load(sorted_ids + tile_m * BLOCK_M + tl.arange(0, BLOCK_M))
    start_n = tile_n * BLOCK_N
    channel = start_n + tl.arange(0, BLOCK_N)
    # Places that are not filled read the last pair's row, and are not stored.
    row = (tl.minimum(pair, total - 1) // ROWS_OF).to(tl.int64)
    sums = expert_tile(
        a, b, scale_a, scale_b, row, expert, start_n, N, K,
        stride_a, stride_b_expert, stride_b, scale_a_row, scale_a_group,
        scale_b_expert, scale_b_channel, scale_b_group,
        GROUP, PROMOTED, SWAPPED, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip
    to = out + pair.to(tl.int64)[:, None] * N + channel[None, :]
    tl.store(to, sums.to(out.dtype.element_ty), mask=(pair < total)[:, None] & (channel < N)[None, :])


@triton.jit
def _sum(
    y, weights, out, width, weights_row, weights_column,
    ids, ids_row, ids_column, expert_map, map_stride, known, experts, total,
    CHOICES: tl.constexpr, MAPPED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Columns of a token: its choices' results, weighted and added in their order."""
    token, columns = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    sums = tl.zeros((BLOCK,), tl.float32)
    for choice in range(CHOICES):
        pair = token * CHOICES + choice
        expert = expert_of(
            ids, pair, pair < total, ids_row, ids_column, expert_map, map_stride, known, experts, CHOICES, MAPPED
        )
        here = columns < tl.where(expert < experts, width, 0)
        value = tl.load(y + pair.to(tl.int64) * width + columns, mask=here, other=0.0).to(tl.float32)
        weight = tl.load(weights + token.to(tl.int64) * weights_row + choice * weights_column).to(tl.float32)
        sums += value * tl.where(expert < experts, weight, 0.0)
    tl.store(out + token.to(tl.int64) * width + columns, sums.to(out.dtype.element_ty), mask=columns < width)


def fused_moe(
    x: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    w13_scale: torch.Tensor,
    w2_scale: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    activation: str,
    quantization: str,
    x_scale: torch.Tensor | None,
    intermediate_scale: torch.Tensor | None,
    scale_ub: float | None,
    expert_map: torch.Tensor | None,
    *,
    out: torch.Tensor,
) -> None:
    """As the operator."""
    (tokens, hidden), (experts, twice, _) = x.shape, w13.shape
    width, choices = twice // 2, topk_ids.shape[1]
    pairs = tokens * choices
    if not pairs:
        return
    is_of_blocks = of_blocks(w13_scale, w13)
    name = shape_class(pairs, experts, is_of_blocks)
    if not aligned(w13, w2):
        name = "unaligned, blocks" if is_of_blocks else "unaligned"
    chosen = configuration("fused_moe", target_of(x).capability, name)
    block = chosen["BLOCK_M"]
    blocks = aligned_blocks(pairs, block, experts)
    sorted_ids, expert_ids, num_padded = (
        topk_ids.new_empty((size,), dtype=torch.int32) for size in (blocks * block, blocks, 1)
    )
    aligning = align_arguments(topk_ids, block, experts, expert_map, sorted_ids, expert_ids, num_padded)
    looking_up = {
        name: aligning[name]
        for name in (
            "ids", "ids_row", "ids_column", "expert_map", "map_stride", "known", "experts", "total", "CHOICES", "MAPPED"
        )
    }  # fmt: skip
    encoding: dict[str, Any] = {
        "scale_ub": 0.0 if scale_ub is None else scale_ub,
        "SCALES": quantization,
        "BOUNDED": scale_ub is not None,
        "LARGEST": torch.finfo(w13.dtype).max,
    }

    encoded = x.dtype in _FP8
    of_pairs = not encoded and quantization == "tensor" and x_scale is not None and x_scale.numel() > 1
    rows = pairs if of_pairs else tokens
    codes, scale = (x, x_scale) if encoded else _codes(x, rows, hidden, quantization, w13.dtype)
    launch(
        _align_and_encode,
        (experts + 1 + (0 if encoded else rows),),
        x=x,
        x_scale=x_scale,
        codes=codes,
        code_scale=scale,
        width=hidden,
        stride_row=x.stride(0),
        stride_column=x.stride(1),
        x_scale_stride=x_scale.stride(0) if of_pairs and x_scale is not None else 0,
        OF_PAIRS=of_pairs,
        WIDE=_wide(hidden),
        **encoding,
        **aligning,
    )
    gate_up = out.new_empty((pairs, twice))
    _products(codes, scale, w13, w13_scale, gate_up, 1 if of_pairs else choices, chosen, aligning)
    codes, scale = _codes(x, pairs, width, quantization, w2.dtype)
    launch(
        _activate_and_encode,
        (pairs,),
        x=gate_up,
        scale=intermediate_scale,
        codes=codes,
        code_scale=scale,
        width=width,
        scale_stride=intermediate_scale.stride(0)
        if intermediate_scale is not None and intermediate_scale.numel() > 1
        else 0,
        ACTIVATION=activation,
        WIDE=_wide(width),
        **encoding,
        **looking_up,
    )
    results = out.new_empty((pairs, hidden))
    _products(codes, scale, w2, w2_scale, results, 1, chosen, aligning)
    columns = min(1024, triton.next_power_of_2(hidden))
    launch(
        _sum,
        (tokens, triton.cdiv(hidden, columns)),
        num_warps=4,
        y=results,
        weights=topk_weights,
        out=out,
        width=hidden,
        weights_row=topk_weights.stride(0),
        weights_column=topk_weights.stride(1),
        BLOCK=columns,
        **looking_up,
    )


def _wide(width: int) -> int:
    """Columns that are encoded at a time: whole groups of 128."""
    whole: int = triton.next_power_of_2(width)
    return min(_WIDEST, max(_GROUP, whole))


def _codes(
    x: torch.Tensor, rows: int, width: int, quantization: str, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Uninitialised codes and scales of so many rows."""
    groups = triton.cdiv(width, _GROUP) if quantization == "group" else 1
    return x.new_empty((rows, width), dtype=dtype), x.new_empty((rows, groups), dtype=torch.float32)


def _products(
    codes: torch.Tensor,
    scale: torch.Tensor | None,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    out: torch.Tensor,
    rows_of: int,
    chosen: Mapping[str, Any],
    aligning: Mapping[str, Any],
) -> None:
    """Pairs times the weights of their experts; `rows_of` pairs share a row of codes."""
    assert scale is not None
    codes, weight = with_unit_stride(codes), with_unit_stride(weight)
    blocks = of_blocks(weight_scale, weight)
    channels = weight.shape[1]
    tiles_m = aligning["blocks"]
    launch(
        _multiply,
        (tiles_m * triton.cdiv(channels, chosen["BLOCK_N"]),),
        a=codes,
        b=weight,
        scale_a=scale,
        scale_b=weight_scale,
        sorted_ids=aligning["sorted_ids"],
        expert_ids=aligning["expert_ids"],
        num_padded=aligning["num_padded"],
        out=out,
        N=channels,
        K=weight.shape[2],
        total=aligning["total"],
        tiles_m=tiles_m,
        stride_a=codes.stride(0),
        stride_b_expert=weight.stride(0),
        stride_b=weight.stride(1),
        scale_a_row=scale.stride(0) if scale.numel() > 1 else 0,
        scale_a_group=scale.stride(1) if scale.ndim == 2 and scale.shape[1] > 1 else 0,
        **weight_scale_strides(weight_scale, blocks),
        ROWS_OF=rows_of,
        GROUP=_GROUP if blocks else 0,
        **chosen,
    )
