"""Routing in Triton."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from policyquant.kernels.triton.launch import launch

SMALLEST_SUM = tl.constexpr(torch.finfo(torch.float32).tiny)
_TILE = 1024
"""Logits that a program looks at, at the least."""
_CHUNK = 1024
"""Pairs that are counted at a time."""


@triton.jit
def _ordered(x):
    """Integers that order as the float32 x do; NaN is the largest, and -0 is 0."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    key = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return tl.where(x != x, 0x7FFFFFFF, key)


@triton.jit
def _topk(
    logits,
    bias,
    out,
    out_ids,
    tokens,
    experts,
    logits_row,
    logits_column,
    bias_stride,
    K: tl.constexpr,
    SIGMOID: tl.constexpr,
    BIASED: tl.constexpr,
    RENORMALIZE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK_E)
    inside = (rows < tokens)[:, None] & (columns < experts)[None, :]
    at = logits + rows.to(tl.int64)[:, None] * logits_row + columns[None, :] * logits_column
    x = tl.load(at, mask=inside, other=float("-inf")).to(tl.float32)
    choice = x
    if SIGMOID:
        scores = 1.0 / (1.0 + tl.exp(-x))
        if BIASED:
            choice = scores + tl.load(bias + columns * bias_stride, mask=columns < experts, other=0.0).to(tl.float32)
    else:
        powers = tl.exp(x - tl.max(x, axis=1)[:, None])
        # Rows that are not there hold nothing but -inf.
        scores = powers / tl.sum(tl.where(inside, powers, 0.0), axis=1)[:, None]
    # All differ, so the largest is one place: the higher value, and of equal ones the lower id.
    keys = (_ordered(choice).to(tl.int64) << 32) | (BLOCK_E - 1 - columns).to(tl.int64)[None, :]
    taken = tl.full((ROWS, BLOCK_E), -0x8000000000000000, tl.int64)
    keys = tl.where((columns < experts)[None, :], keys, taken)
    ranks = tl.arange(0, BLOCK_K)
    weights = tl.zeros((ROWS, BLOCK_K), tl.float32)
    ids = tl.zeros((ROWS, BLOCK_K), tl.int32)
    for rank in range(K):
        best = tl.max(keys, axis=1)
        chosen = keys == best[:, None]
        weight = tl.sum(tl.where(chosen, scores, 0.0), axis=1)
        expert = BLOCK_E - 1 - (best & 0xFFFFFFFF).to(tl.int32)
        here = (ranks == rank)[None, :]
        weights = tl.where(here, weight[:, None], weights)
        ids = tl.where(here, expert[:, None], ids)
        keys = tl.where(chosen, taken, keys)
    if RENORMALIZE:
        total = tl.sum(weights, axis=1)
        weights = weights / tl.where(total < SMALLEST_SUM, SMALLEST_SUM, total)[:, None]
    to = rows.to(tl.int64)[:, None] * K + ranks[None, :]
    mask = (rows < tokens)[:, None] & (ranks < K)[None, :]
    tl.store(out + to, weights, mask=mask)
    tl.store(out_ids + to, ids, mask=mask)


def _choose(
    logits: torch.Tensor,
    k: int,
    renormalize: bool,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    out_ids: torch.Tensor,
    sigmoid: bool,
) -> None:
    tokens, experts = logits.shape
    block = triton.next_power_of_2(experts)
    rows = max(1, _TILE // block)
    launch(
        _topk,
        (triton.cdiv(tokens, rows),),
        num_warps=4,
        logits=logits,
        bias=bias,
        out=out,
        out_ids=out_ids,
        tokens=tokens,
        experts=experts,
        logits_row=logits.stride(0),
        logits_column=logits.stride(1),
        bias_stride=0 if bias is None else bias.stride(0),
        K=k,
        SIGMOID=sigmoid,
        BIASED=bias is not None,
        RENORMALIZE=renormalize,
        ROWS=rows,
        BLOCK_E=block,
        BLOCK_K=triton.next_power_of_2(k),
    )


def topk_softmax(logits: torch.Tensor, k: int, renormalize: bool, *, out: torch.Tensor, out_ids: torch.Tensor) -> None:
    """The k best experts of each token."""
    _choose(logits, k, renormalize, None, out, out_ids, False)


def topk_sigmoid(
    logits: torch.Tensor,
    k: int,
    renormalize: bool,
    bias: torch.Tensor | None,
    *,
    out: torch.Tensor,
    out_ids: torch.Tensor,
) -> None:
    """The same by sigmoids; sigmoid + bias chooses."""
    _choose(logits, k, renormalize, bias, out, out_ids, True)


@triton.jit
def expert_of(
    ids,
    pairs,
    mask,
    ids_row,
    ids_column,
    expert_map,
    map_stride,
    known,
    experts,
    CHOICES: tl.constexpr,
    MAPPED: tl.constexpr,
):
    """The expert here to which each pair token · CHOICES + choice goes, int32; `experts` where there is none.

    An id is looked up only if it is one of the `known` ones.
    """
    at = (pairs // CHOICES).to(tl.int64) * ids_row + (pairs % CHOICES) * ids_column
    expert = tl.load(ids + at, mask=mask, other=-1).to(tl.int64)
    here = (expert >= 0) & (expert < known)
    if MAPPED:
        expert = tl.load(expert_map + expert * map_stride, mask=here, other=-1).to(tl.int64)
        here = (expert >= 0) & (expert < experts)
    return tl.where(here, expert, experts).to(tl.int32)


@triton.jit
def align_expert(
    own,
    ids,
    ids_row,
    ids_column,
    expert_map,
    map_stride,
    known,
    experts,
    total,
    blocks,
    sorted_ids,
    expert_ids,
    num_padded,
    CHOICES: tl.constexpr,
    MAPPED: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_FILL: tl.constexpr,
    BINS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """What `moe_align` writes for the expert `own`, or with own = experts, what is left behind the last block.

    Each program counts everybody's pairs for itself, so that none waits for another and nothing depends on an order.
    """
    bins = tl.arange(0, BINS)
    lanes = tl.arange(0, CHUNK)
    counts = tl.zeros((BINS,), tl.int32)
    for start in range(0, total, CHUNK):
        pairs = start + lanes
        found = expert_of(
            ids, pairs, pairs < total, ids_row, ids_column, expert_map, map_stride, known, experts, CHOICES, MAPPED
        )
        counts += tl.histogram(found, BINS)
    padded = tl.where(bins < experts, (counts + BLOCK - 1) // BLOCK * BLOCK, 0)
    begin = tl.sum(tl.where(bins < own, padded, 0), axis=0)
    if own == experts:
        tl.store(num_padded, begin)
        for start in range(begin, blocks * BLOCK, CHUNK):
            tl.store(sorted_ids + start + lanes, total, mask=start + lanes < blocks * BLOCK)
        for start in range(begin // BLOCK, blocks, CHUNK):
            tl.store(expert_ids + start + lanes, -1, mask=start + lanes < blocks)
    else:
        count = tl.sum(tl.where(bins == own, counts, 0), axis=0)
        end = (count + BLOCK - 1) // BLOCK * BLOCK
        for start in range(0, end // BLOCK, CHUNK):
            tl.store(expert_ids + begin // BLOCK + start + lanes, own, mask=start + lanes < end // BLOCK)
        fill = count + tl.arange(0, BLOCK_FILL)
        tl.store(sorted_ids + begin + fill, total, mask=fill < end)
        to = begin
        # Nobody's pairs are not looked for a second time.
        for start in range(0, tl.where(count > 0, total, 0), CHUNK):
            pairs = start + lanes
            found = expert_of(
                ids, pairs, pairs < total, ids_row, ids_column, expert_map, map_stride, known, experts, CHOICES, MAPPED
            )
            mine = (found == own).to(tl.int32)
            tl.store(sorted_ids + to + tl.cumsum(mine, axis=0) - mine, pairs, mask=mine > 0)
            to += tl.sum(mine, axis=0)


@triton.jit
def _align(
    ids,
    ids_row,
    ids_column,
    expert_map,
    map_stride,
    known,
    experts,
    total,
    blocks,
    sorted_ids,
    expert_ids,
    num_padded,
    CHOICES: tl.constexpr,
    MAPPED: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_FILL: tl.constexpr,
    BINS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    align_expert(
        tl.program_id(0),
        ids,
        ids_row,
        ids_column,
        expert_map,
        map_stride,
        known,
        experts,
        total,
        blocks,
        sorted_ids,
        expert_ids,
        num_padded,
        CHOICES,
        MAPPED,
        BLOCK,
        BLOCK_FILL,
        BINS,
        CHUNK,
    )


def align_arguments(
    ids: torch.Tensor,
    block_size: int,
    num_experts: int,
    expert_map: torch.Tensor | None,
    sorted_ids: torch.Tensor,
    expert_ids: torch.Tensor,
    num_padded: torch.Tensor,
) -> dict[str, Any]:
    """The arguments of `align_expert` but the first."""
    return {
        "ids": ids,
        "ids_row": ids.stride(0),
        "ids_column": ids.stride(1),
        "expert_map": expert_map,
        "map_stride": 0 if expert_map is None else expert_map.stride(0),
        "known": num_experts if expert_map is None else expert_map.shape[0],
        "experts": num_experts,
        "total": ids.numel(),
        "blocks": expert_ids.shape[0],
        "sorted_ids": sorted_ids,
        "expert_ids": expert_ids,
        "num_padded": num_padded,
        "CHOICES": max(1, ids.shape[1]),
        "MAPPED": expert_map is not None,
        "BLOCK": block_size,
        "BLOCK_FILL": triton.next_power_of_2(block_size),
        "BINS": triton.next_power_of_2(num_experts + 1),
        "CHUNK": min(_CHUNK, max(32, triton.next_power_of_2(ids.numel()))),
    }


def moe_align(
    ids: torch.Tensor,
    block_size: int,
    num_experts: int,
    expert_map: torch.Tensor | None,
    *,
    out: torch.Tensor,
    out_expert_ids: torch.Tensor,
    out_num_padded: torch.Tensor,
) -> None:
    """Pairs of tokens and choices sorted by expert, in blocks."""
    arguments = align_arguments(ids, block_size, num_experts, expert_map, out, out_expert_ids, out_num_padded)
    launch(_align, (num_experts + 1,), num_warps=4, **arguments)
