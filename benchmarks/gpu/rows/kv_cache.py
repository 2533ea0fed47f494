"""Writing keys and values into an FP8 cache."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.gpu.row import Bar, Row
from policyquant.kernels import ops

BLOCK = 16


def rows(tiny: bool) -> list[Row]:
    """Eight heads of 128."""
    return [_row(tokens, 2 if tiny else 8, 16 if tiny else 128) for tokens in ((3,) if tiny else (64, 8192, 32768))]


def _row(tokens: int, heads: int, head_dim: int) -> Row:
    def inputs(device: str) -> list[Any]:
        key, value = (torch.randn(tokens, heads, head_dim, device=device, dtype=torch.bfloat16) for _ in range(2))
        blocks = -(-tokens // BLOCK)
        caches = [
            torch.zeros(blocks, BLOCK, heads, head_dim, device=device, dtype=torch.float8_e4m3fn) for _ in range(2)
        ]
        slots = torch.randperm(blocks * BLOCK, device=device)[:tokens]
        scales = [torch.full((1,), 0.02, device=device) for _ in range(2)]
        return [key, value, *caches, slots, *scales]

    return Row(
        "reshape_and_cache_fp8",
        f"{tokens} × {heads} × {head_dim}",
        inputs,
        lambda given: ops.reshape_and_cache_fp8(*given),
        ("reshape_and_cache_fp8",),
        6 * tokens * heads * head_dim + 8 * tokens,
        bars=(Bar("copy", 0.70),) if tokens >= 8192 else (),
    )
