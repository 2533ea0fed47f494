"""Keys and values in an FP8 cache, in Triton: several heads of several tokens a program, one row of a tile for each."""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl

from policyquant.kernels.triton.encode import SMALLEST_SCALE, encode
from policyquant.kernels.triton.launch import launch, target_of
from policyquant.kernels.tuning import configuration

_FAMILY: Final = "kv_cache"
_FEW_TOKENS: Final = 64
_TRITON: Final = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


@triton.jit
def _places(slot_mapping, stride_slot, T, H, slots, block_size, BLOCK_T: tl.constexpr, BLOCK_H: tl.constexpr):
    """The token, the head, the block and the position in it of each row of a tile, and whether all are there."""
    row = tl.arange(0, BLOCK_T * BLOCK_H)
    token = tl.program_id(0) * BLOCK_T + row // BLOCK_H
    head = tl.program_id(1) * BLOCK_H + row % BLOCK_H
    there = (token < T) & (head < H)
    slot = tl.load(slot_mapping + token.to(tl.int64) * stride_slot, mask=there, other=-1)
    valid = there & (slot >= 0) & (slot < slots)
    slot = tl.where(valid, slot, 0).to(tl.int32)
    block = slot // block_size
    return token.to(tl.int64), head.to(tl.int64), block.to(tl.int64), (slot - block * block_size).to(tl.int64), valid


@triton.jit
def _scale_of(scale, head, valid, stride, PER_HEAD: tl.constexpr):
    """The scale of each row [rows, 1], or the one of all."""
    if PER_HEAD:
        loaded = tl.load(scale + head * stride, mask=valid, other=1.0)[:, None]
    else:
        loaded = tl.load(scale)
    return loaded


@triton.jit
def _write(
    x, cache, scale, token, head, block, position, valid,
    stride_x_token, stride_x_head, stride_x_column, stride_block, stride_position, stride_head, stride_column,
    stride_scale, D, PER_HEAD: tl.constexpr, LARGEST: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, BLOCK_D)[None, :]
    mask = valid[:, None] & (column < D)
    wide = column.to(tl.int64)
    own = tl.maximum(
        _scale_of(scale, head, valid, stride_scale, PER_HEAD), SMALLEST_SCALE, propagate_nan=tl.PropagateNan.ALL
    )
    source = (token * stride_x_token + head * stride_x_head)[:, None] + wide * stride_x_column
    value = tl.load(x + source, mask=mask, other=0.0)
    to = (block * stride_block + position * stride_position + head * stride_head)[:, None] + wide * stride_column
    tl.store(cache + to, encode(value, own, LARGEST, cache.dtype.element_ty), mask=mask)


@triton.jit
def _reshape_and_cache(
    key, value, key_cache, value_cache, slot_mapping, k_scale, v_scale, T, H, D_K, D_V, slots, block_size,
    stride_k_token, stride_k_head, stride_k_column, stride_v_token, stride_v_head, stride_v_column,
    stride_kc_block, stride_kc_position, stride_kc_head, stride_kc_column,
    stride_vc_block, stride_vc_position, stride_vc_head, stride_vc_column,
    stride_slot, stride_k_scale, stride_v_scale,
    K_PER_HEAD: tl.constexpr, V_PER_HEAD: tl.constexpr, LARGEST: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Keys by the programs of the first layer of the grid, values by those of the second."""
    token, head, block, position, valid = _places(slot_mapping, stride_slot, T, H, slots, block_size, BLOCK_T, BLOCK_H)
    if tl.program_id(2) == 0:
        _write(
            key, key_cache, k_scale, token, head, block, position, valid,
            stride_k_token, stride_k_head, stride_k_column,
            stride_kc_block, stride_kc_position, stride_kc_head, stride_kc_column,
            stride_k_scale, D_K, K_PER_HEAD, LARGEST, BLOCK_K,
        )  # fmt: skip
    else:
        _write(
            value, value_cache, v_scale, token, head, block, position, valid,
            stride_v_token, stride_v_head, stride_v_column,
            stride_vc_block, stride_vc_position, stride_vc_head, stride_vc_column,
            stride_v_scale, D_V, V_PER_HEAD, LARGEST, BLOCK_V,
        )  # fmt: skip


@triton.jit
def _gather(
    cache, slot_mapping, scale, out, T, H, D, slots, block_size,
    stride_block, stride_position, stride_head, stride_column, stride_slot, stride_scale,
    PER_HEAD: tl.constexpr, DTYPE: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    token, head, block, position, valid = _places(slot_mapping, stride_slot, T, H, slots, block_size, BLOCK_T, BLOCK_H)
    column = tl.arange(0, BLOCK_D)[None, :]
    wide = column.to(tl.int64)
    source = (block * stride_block + position * stride_position + head * stride_head)[:, None] + wide * stride_column
    codes = tl.load(cache + source, mask=valid[:, None] & (column < D), other=0.0)
    value = codes.to(tl.float32) * _scale_of(scale, head, valid, stride_scale, PER_HEAD)
    value = tl.where(valid[:, None], value, 0.0)
    there = (token < T) & (head < H)
    to = ((token * H + head) * D)[:, None] + wide
    tl.store(out + to, value.to(DTYPE), mask=there[:, None] & (column < D))


def reshape_and_cache_fp8(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
) -> None:
    """One launch for both caches."""
    tokens, heads, _ = key.shape
    wider = max(key.shape[2], value.shape[2])
    if not tokens * heads * wider:
        return
    tile, grid, options = _tiles(key, tokens, heads, wider)
    launch(
        _reshape_and_cache,
        (*grid, 2),
        key=key,
        value=value,
        key_cache=key_cache,
        value_cache=value_cache,
        slot_mapping=slot_mapping,
        k_scale=k_scale,
        v_scale=v_scale,
        T=tokens,
        H=heads,
        D_K=key.shape[2],
        D_V=value.shape[2],
        slots=key_cache.shape[0] * key_cache.shape[1],
        block_size=max(1, key_cache.shape[1]),
        **_strides(key, "k", "token", "head", "column"),
        **_strides(value, "v", "token", "head", "column"),
        **_strides(key_cache, "kc", "block", "position", "head", "column"),
        **_strides(value_cache, "vc", "block", "position", "head", "column"),
        stride_slot=slot_mapping.stride(0),
        stride_k_scale=k_scale.stride(0),
        stride_v_scale=v_scale.stride(0),
        K_PER_HEAD=k_scale.shape[0] > 1,
        V_PER_HEAD=v_scale.shape[0] > 1,
        LARGEST=torch.finfo(key_cache.dtype).max,
        BLOCK_K=triton.next_power_of_2(max(1, key.shape[2])),
        BLOCK_V=triton.next_power_of_2(max(1, value.shape[2])),
        **tile,
        **options,
    )


def gather_cache_fp8(cache: torch.Tensor, slots: torch.Tensor, scale: torch.Tensor, *, out: torch.Tensor) -> None:
    """One launch; slots may have any shape, and are read as a list."""
    listed = slots.reshape(-1)
    blocks, block_size, heads, columns = cache.shape
    tokens = listed.shape[0]
    if not out.numel():
        return
    tile, grid, options = _tiles(cache, tokens, heads, columns)
    launch(
        _gather,
        grid,
        cache=cache,
        slot_mapping=listed,
        scale=scale,
        out=out,
        T=tokens,
        H=heads,
        D=columns,
        slots=blocks * block_size,
        block_size=max(1, block_size),
        **_strides(cache, "", "block", "position", "head", "column"),
        stride_slot=listed.stride(0),
        stride_scale=scale.stride(0),
        PER_HEAD=scale.shape[0] > 1,
        DTYPE=_TRITON[out.dtype],
        BLOCK_D=triton.next_power_of_2(columns),
        **tile,
        **options,
    )


def _tiles(x: torch.Tensor, tokens: int, heads: int, columns: int) -> tuple[dict[str, int], tuple[int, int], Any]:
    """How many tokens and heads a tile has, the programs that takes, and the rest of the configuration."""
    shape_class = "few tokens" if tokens <= _FEW_TOKENS else "many tokens"
    options = dict(configuration(_FAMILY, target_of(x).capability, shape_class))
    rows = max(1, options.pop("ELEMENTS") // triton.next_power_of_2(columns))
    of_heads = min(rows, triton.next_power_of_2(heads))
    of_tokens = rows // of_heads
    return {"BLOCK_T": of_tokens, "BLOCK_H": of_heads}, (-(-tokens // of_tokens), -(-heads // of_heads)), options


def _strides(x: torch.Tensor, name: str, *dimensions: str) -> dict[str, int]:
    prefix = f"stride_{name}_" if name else "stride_"
    return {prefix + dimension: stride for dimension, stride in zip(dimensions, x.stride(), strict=True)}
