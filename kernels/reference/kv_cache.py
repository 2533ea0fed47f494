"""Keys and values in an FP8 cache [blocks, block size, heads, head size]: slots number the positions of all blocks."""

from __future__ import annotations

import torch

from policyquant.kernels.reference.formats import SMALLEST_SCALE
from policyquant.kernels.reference.quantize import dequantize, static_scaled_fp8_quant


def reshape_and_cache_fp8(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
) -> None:
    """Codes of key / k_scale and value / v_scale are written token by token; a slot that is not there is left out.

    A scale below 2**-126 is read as that.
    """
    for rows, cache, scale in ((key, key_cache, k_scale), (value, value_cache, v_scale)):
        codes = static_scaled_fp8_quant(rows, scale[:, None].clamp(min=SMALLEST_SCALE), cache.dtype)
        blocks, block_size = cache.shape[:2]
        for token, slot in enumerate(slot_mapping.tolist()):
            if 0 <= slot < blocks * block_size:
                cache.view(torch.uint8)[slot // block_size, slot % block_size] = codes.view(torch.uint8)[token]


def gather_cache_fp8(cache: torch.Tensor, slots: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """q · scale of the rows at slots; zeros for a slot that is not there."""
    blocks, block_size = cache.shape[:2]
    rows = torch.zeros(slots.numel(), *cache.shape[2:], dtype=torch.float64)
    for token, slot in enumerate(slots.reshape(-1).tolist()):
        if 0 <= slot < blocks * block_size:
            rows[token] = dequantize(cache[slot // block_size, slot % block_size], scale[:, None])
    return rows.reshape(*slots.shape, *cache.shape[2:])
