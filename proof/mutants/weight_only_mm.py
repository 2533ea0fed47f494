"""Mutants of products with 8-bit weights."""

from __future__ import annotations

from proof.mutants.mutant import Mutant


def _own(kind: str, old: str, new: str) -> Mutant:
    return Mutant(
        kind,
        "kernels/triton/weight_only_mm.py",
        old,
        new,
        "tests/kernels/test_weight_only_mm.py",
        "triton or code or block or offset or bias or hostile or nothing or nan",
    )


MUTANTS: list[Mutant] = [
    _own(
        "decode without the exponent's factor",
        'if SCALES != "block" and RESCALE != 1.0:\n        sums *= RESCALE',
        'if SCALES != "block" and RESCALE != 1.0:\n        sums *= 1.0',
    ),
    _own("lose the sign", "bits << 20) & -0x78100000", "bits << 20) & 0x7EF00000"),
    _own(
        "swap the scales",
        "factor = tl.load(scale + of_row + start // _SCALE_BLOCK * stride_scale_column)",
        "factor = tl.load(scale + of_row)",
    ),
    _own(
        "missing bias",
        "sums = sums + tl.load(bias + rows * stride_bias, mask=rows < N, other=0.0).to(tl.float32)[:, None]",
        "sums = sums + 0.0",
    ),
    _own(
        "missing mask of K",
        "given = tl.load(x_at, mask=there[:, None] & (m < M)[None, :], other=0.0)",
        "given = tl.load(x_at, mask=(k < K)[:, None] & (m < M)[None, :], other=0.0)",
    ),
    _own(
        "one scale for all rows",
        "tl.load(scale + rows * stride_scale_row, mask=rows < N, other=0.0)[:, None]",
        "tl.load(scale + rows * 0, mask=rows < N, other=0.0)[:, None]",
    ),
    _own(
        "missing part of K",
        "for part in tl.static_range(PARTS):\n        sums += tl.load(parts + part * size + at, mask=mask, other=0.0)",
        "for part in tl.static_range(PARTS):\n        sums += tl.load(parts + part * size * 0 + at, mask=mask, other=0.0)",
    ),
]
