"""Keys and values in an FP8 cache, on a CPU. Nothing waits for a GPU either: no value decides what runs."""

from __future__ import annotations

from typing import Final

import torch

from policyquant.kernels.cpu import quantize

FP8: Final = (torch.float8_e4m3fn, torch.float8_e5m2)
"""What a cache can hold."""


def reshape_and_cache_fp8(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
) -> None:
    """Write codes of key / k_scale and value / v_scale to the slots of the caches."""
    _write(key, key_cache, slot_mapping, k_scale)
    _write(value, value_cache, slot_mapping, v_scale)


def _write(rows: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor, scale: torch.Tensor) -> None:
    if rows.numel() == 0 or cache.numel() == 0:
        return
    valid = (slots >= 0) & (slots < cache.shape[0] * cache.shape[1])
    # A token without a slot writes again what the first token that has one writes, or slot 0 what is there.
    source = torch.where(valid, torch.arange(slots.shape[0], device=slots.device), valid.int().argmax())
    any_valid = valid.any()
    slots = torch.where(any_valid, slots[source], 0)
    own = _by_head(scale).clamp(min=quantize.SMALLEST_SCALE)
    codes = quantize.static_scaled_fp8_quant(rows, own, cache.dtype).view(torch.uint8)
    # Bytes: torch indexes no 8-bit floats everywhere.
    stored = cache.view(torch.uint8)
    codes = torch.where(any_valid, codes[source], stored[0, 0])
    stored[slots // cache.shape[1], slots % cache.shape[1]] = codes


def gather_cache_fp8(cache: torch.Tensor, slots: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The rows of a cache at slots [...]: [..., heads, head size], q · scale rounded once to `dtype`; 0 for no slot."""
    shape = (*slots.shape, *cache.shape[2:])
    if cache.numel() == 0 or slots.numel() == 0:
        return torch.zeros(shape, dtype=dtype, device=cache.device)
    valid = (slots >= 0) & (slots < cache.shape[0] * cache.shape[1])
    at = torch.where(valid, slots, 0)
    codes = cache.view(torch.uint8)[at // cache.shape[1], at % cache.shape[1]].view(cache.dtype)
    rows = quantize.dequantize(codes, _by_head(scale), dtype)
    return torch.where(valid[..., None, None], rows, 0)


def _by_head(scale: torch.Tensor) -> torch.Tensor:
    """A scale [1] or [heads] as it broadcasts against [..., heads, head size]."""
    return scale[:, None]
