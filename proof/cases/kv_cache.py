"""Keys and values written to an FP8 cache and read from it."""

from __future__ import annotations

from typing import Any

import torch

from proof.case import BF16, FP8, FP32, Case, Kernel, meta

T, BLOCKS, SIZE, HEADS, D = 16384, 2048, 16, 8, 128
_SLOTS = "each row's slot is divided by the block size, and its offsets are 64 bits wide: few bytes a row to do it in"

_WAIVED = dict.fromkeys(("issue@90", "issue@100", "alu@90", "alu@100", "fp32@100"), _SLOTS)


def _cache(d: int = D) -> torch.Tensor:
    return meta(BLOCKS, SIZE, HEADS, d, dtype=FP8)


def _slots(tokens: int) -> torch.Tensor:
    return meta(tokens, dtype=torch.int64)


def _write(tokens: int, scales: int, pitch: int | None = None, d: int = D) -> tuple[Any, ...]:
    key, value = (meta(tokens, HEADS, d, pitch=pitch) for _ in range(2))
    return key, value, _cache(d), _cache(d), _slots(tokens), meta(scales, dtype=FP32), meta(scales, dtype=FP32)


def _written(tokens: int) -> dict[str, Kernel]:
    """Slots and scales of each row are narrow, for keys and for values."""
    traffic = 6 * tokens * HEADS * D + 8 * tokens
    return {"_reshape_and_cache": Kernel(bytes=traffic, narrow_loads=12, waivers=_WAIVED)}


CASES = [
    Case("reshape_and_cache_fp8", "many tokens, one scale", lambda: _write(T, 1), _written(T)),
    Case("reshape_and_cache_fp8", "many tokens, scales of heads", lambda: _write(T, HEADS), _written(T), quick=False),
    Case("reshape_and_cache_fp8", "few tokens", lambda: _write(32, 1), _written(32), quick=False),
    Case("reshape_and_cache_fp8", "odd pitch", lambda: _write(T, 1, pitch=D + 1), _written(T), aligned=False),
    Case(
        "gather_cache_fp8",
        "many tokens",
        lambda: (_cache(), _slots(T), meta(1, dtype=FP32), BF16),
        {"_gather": Kernel(bytes=3 * T * HEADS * D + 8 * T, narrow_loads=12, waivers=_WAIVED)},
    ),
    Case(
        "gather_cache_fp8",
        "odd head size",
        lambda: (_cache(D - 1), _slots(T), meta(1, dtype=FP32), BF16),
        {"_gather": Kernel(bytes=3 * T * HEADS * D + 8 * T)},
        aligned=False,
        quick=False,
    ),
]
