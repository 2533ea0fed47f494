"""Mutants of norms."""

from __future__ import annotations

from proof.mutants.mutant import Mutant


def _own(kind: str, old: str, new: str) -> Mutant:
    return Mutant(
        kind,
        "kernels/triton/norm.py",
        old,
        new,
        "tests/kernels/test_fused_outputs.py",
        "(norm or width or weight or strides) and triton",
    )


MUTANTS: list[Mutant] = [
    _own(
        "normalize without the mean",
        "inverse = tl.rsqrt(tl.sum(wide * wide, axis=1) / N + eps)",
        "inverse = tl.rsqrt(tl.sum(wide * wide, axis=1) / BLOCK_N + eps)",
    ),
    _own(
        "skip the sum's last column",
        "mask = (rows < M) & (columns < N)\n    at = rows",
        "mask = (rows < M) & (columns < N - 1)\n    at = rows",
    ),
    _own(
        "ignore the weight's stride",
        "factor = tl.load(weight + column.to(tl.int64) * stride_weight, mask=column < N, other=0.0)\n    wide",
        "factor = tl.load(weight + column.to(tl.int64) * stride_weight, mask=column < N - 1, other=0.0)\n    wide",
    ),
    _own(
        "forget the upper bound",
        "own = scale_of(tl.max(finite_magnitude(y), axis=1), LARGEST, scale_ub, BOUNDED)\n        tl.store(out_scale + row",
        "own = scale_of(tl.max(finite_magnitude(y), axis=1), LARGEST, scale_ub, False)\n        tl.store(out_scale + row",
    ),
    _own(
        "swap the strides of scales",
        "rows.to(tl.int64) * stride_scale_row + group.to(tl.int64) * stride_scale_group\n        tl.store(out_scale + to, own, mask=(rows < M) & (group < groups))\n\n\n@triton.jit\ndef _norm_in_steps",
        "rows.to(tl.int64) * stride_scale_group + group.to(tl.int64) * stride_scale_row\n        tl.store(out_scale + to, own, mask=(rows < M) & (group < groups))\n\n\n@triton.jit\ndef _norm_in_steps",
    ),
    _own(
        "lose the sum",
        "tl.store(out_residual + at, value, mask=mask)\n    factor",
        "tl.store(out_residual + at, value, mask=mask & (columns < N - 1))\n    factor",
    ),
]
