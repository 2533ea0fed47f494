"""Keys and values in an FP8 cache: rows are written to slots as codes, and read from slots as numbers.

A cache is [blocks, block size, heads, head size]; slot s is position s % block size of block s // block size. Strides
are free, so blocks may be stored position by position (NHD) or head by head (HND). A slot that is negative or beyond
the last one stands for no place: nothing is written, zeros are read.
"""

from __future__ import annotations

from typing import Any

import torch

from policyquant.kernels import dispatch
from policyquant.kernels.cpu import kv_cache as plain
from policyquant.kernels.operators.refusals import other_than_floats
from policyquant.kernels.registration import define, define_in_place, like

_ops: Any = torch.ops.policyquant


def _check_write(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
) -> None:
    tokens = slot_mapping.shape[0] if slot_mapping.ndim == 1 else -1
    for name, rows, cache, scale in (("key", key, key_cache, k_scale), ("value", value, value_cache, v_scale)):
        _check_cache("reshape_and_cache_fp8", cache, scale)
        expected = (tokens, *cache.shape[2:])
        if tokens < 0 or tuple(rows.shape) != expected:
            raise ValueError(
                f"reshape_and_cache_fp8: {name} is {list(rows.shape)} and slot_mapping {list(slot_mapping.shape)},"
                f" expected [T, {cache.shape[2]}, {cache.shape[3]}] and [T]"
            )
    if key_cache.shape[:3] != value_cache.shape[:3] or key_cache.dtype != value_cache.dtype:
        raise ValueError(
            f"reshape_and_cache_fp8: the caches are {list(key_cache.shape)} {key_cache.dtype} and"
            f" {list(value_cache.shape)} {value_cache.dtype}, expected the same blocks, block size, heads and dtype"
        )
    _check_slots("reshape_and_cache_fp8", slot_mapping)


def _check_cache(name: str, cache: torch.Tensor, scale: torch.Tensor) -> None:
    if cache.ndim != 4 or cache.dtype not in plain.FP8:
        raise ValueError(
            f"{name}: a cache is {list(cache.shape)} {cache.dtype}, expected [blocks, block size, heads, head size] in"
            f" {' or '.join(str(dtype).removeprefix('torch.') for dtype in plain.FP8)}"
        )
    if tuple(scale.shape) not in ((1,), (cache.shape[2],)) or scale.dtype != torch.float32:
        raise ValueError(
            f"{name}: a scale is {list(scale.shape)} {scale.dtype}, expected [1] or [{cache.shape[2]}] float32"
        )


def _check_slots(name: str, slots: torch.Tensor) -> None:
    if slots.dtype != torch.int64:
        raise ValueError(f"{name}: slots are {slots.dtype}, expected torch.int64")


def _gathered(cache: torch.Tensor, slots: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    _check_cache("gather_cache_fp8", cache, scale)
    _check_slots("gather_cache_fp8", slots)
    return like(cache, (*slots.shape, *cache.shape[2:]), dtype)


def _too_many_slots(on: dispatch.Machine, *inputs: Any, **outs: Any) -> str | None:
    """The kernels count slots in 32 bits: at one byte a slot, 2 GiB."""
    cache = inputs[0] if inputs[0].ndim == 4 else inputs[2]
    slots = cache.shape[0] * cache.shape[1]
    return None if slots < 2**31 else f"a cache of {slots} slots has more than 2**31 - 1"


def _refuses_cuda_write(
    on: dispatch.Machine, key: torch.Tensor, value: torch.Tensor, key_cache: torch.Tensor, *rest: Any
) -> str | None:
    if key.dtype != value.dtype:
        return f"it takes keys and values of one dtype, found {key.dtype} and {value.dtype}"
    return other_than_floats(key) or _too_many_slots(on, key, value, key_cache)


def _refuses_cuda_read(
    on: dispatch.Machine, cache: torch.Tensor, slots: torch.Tensor, scale: torch.Tensor, *, out: torch.Tensor
) -> str | None:
    if slots.ndim > 2 and not slots.is_contiguous():
        return f"it takes slots of at most 2 dimensions that are not contiguous, found {list(slots.shape)}"
    return other_than_floats(out) or _too_many_slots(on, cache)


define_in_place(
    "reshape_and_cache_fp8",
    "Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor slot_mapping, Tensor k_scale,"
    " Tensor v_scale",
    plain.reshape_and_cache_fp8,
    _check_write,
    (
        dispatch.cuda("reshape_and_cache_fp8", refuses=_refuses_cuda_write),
        dispatch.triton("kv_cache", "reshape_and_cache_fp8", refuses=_too_many_slots),
    ),
)
define(
    "gather_cache_fp8",
    "Tensor cache, Tensor slots, Tensor scale, ScalarType dtype",
    {"out": "a"},
    plain.gather_cache_fp8,
    _gathered,
    "dtype",
    implementations=(
        dispatch.cuda("gather_cache_fp8", refuses=_refuses_cuda_read),
        dispatch.triton("kv_cache", "gather_cache_fp8", refuses=_too_many_slots),
    ),
)


def reshape_and_cache_fp8(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
) -> None:
    """Write codes of key / k_scale and value / v_scale, [T, heads, head size], to the slots [T] of the caches.

    Scales are [1], or [heads]: one for each head. A slot may occur once; which of two tokens it would keep is not
    defined.

    Raises:
        ValueError: the shapes do not belong together, or a cache holds no 8-bit floats.
    """
    _ops.reshape_and_cache_fp8.default(key, value, key_cache, value_cache, slot_mapping, k_scale, v_scale)


def gather_cache_fp8(
    cache: torch.Tensor, slots: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype = torch.bfloat16
) -> torch.Tensor:
    """The rows of a cache at slots [...]: [..., heads, head size], q · scale rounded once to dtype.

    The scale is [1] or [heads]. The slots of a block table are table[:, :, None] · block size + arange(block size).

    Raises:
        ValueError: the shapes do not belong together, or the cache holds no 8-bit floats.
    """
    result: torch.Tensor = _ops.gather_cache_fp8.default(cache, slots, scale, dtype)
    return result
