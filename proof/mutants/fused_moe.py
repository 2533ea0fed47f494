"""Mutants of mixtures of experts and of grouped products."""

from __future__ import annotations

from proof.mutants.mutant import Mutant


def _own(kind: str, old: str, new: str) -> Mutant:
    return Mutant(kind, "kernels/triton/fused_moe.py", old, new, "tests/kernels/test_fused_moe.py", "triton or bits")


MUTANTS: list[Mutant] = [
    _own(
        "forget the weights",
        "weight = tl.load(weights + token.to(tl.int64) * weights_row + choice * weights_column).to(tl.float32)",
        "weight = 1.0",
    ),
    _own("add what is nobody's", "here = columns < tl.where(expert < experts, width, 0)", "here = columns < width"),
    _own(
        "swap gate and up",
        "value = gated(value, up, ACTIVATION)",
        "value = gated(up, value, ACTIVATION)",
    ),
    _own(
        "skip a rounding",
        "value = gated(value, up, ACTIVATION)",
        "value = (gated(value, up, ACTIVATION).to(tl.float32) * 1.01).to(up.dtype)",
    ),
    _own(
        "one expert's scale for all",
        "return tl.maximum(tl.load(scale + expert * stride), SMALLEST_SCALE",
        "return tl.maximum(tl.load(scale + expert * 0), SMALLEST_SCALE",
    ),
    _own("stale expert id", "expert = tl.load(expert_ids + tile_m)", "expert = tl.load(expert_ids + tile_m * 0)"),
    _own(
        "the same row for all choices",
        "row = (tl.minimum(pair, total - 1) // ROWS_OF).to(tl.int64)",
        "row = (tl.minimum(pair, total - 1)  // ROWS_OF * 0).to(tl.int64)",
    ),
    _own(
        "missing mask of pairs",
        "mask=(pair < total)[:, None] & (channel < N)[None, :])",
        "mask=(channel < N)[None, :] & (pair >= 0)[:, None])",
    ),
]
