"""Mutants of products of int8."""

from __future__ import annotations

from proof.mutants.mutant import Mutant


def _own(kind: str, old: str, new: str, select: str = "triton and (product or exact or layout)") -> Mutant:
    return Mutant(kind, "kernels/triton/int8_mm.py", old, new, "tests/kernels/test_int8_mm.py", select)


MUTANTS: list[Mutant] = [
    _own(
        "sum in float32",
        "sums = tl.dot(x, y.T, sums, out_dtype=tl.int32)",
        "sums = (sums.to(tl.float32) + tl.dot(x, y.T, out_dtype=tl.int32)).to(tl.int32)",
        "triton and exact",
    ),
    _own("missing mask of K", "inside = column[None, :] < K - step * BLOCK_K", "inside = column[None, :] < K"),
    _own("swap the scales", "scale_a + row * stride_scale_a", "scale_b + row * stride_scale_b"),
    _own("missing bias", "result += tl.load(bias + channel * stride_bias).to(tl.float32)[None, :]", "result += 0.0"),
    _own("a zero point is added", "sums -= zero[:, None]", "sums += zero[:, None]"),
    _own("one zero point for all rows", "zero_point + row * stride_zero_point", "zero_point + row * 0"),
    _own("one sum for all channels", "weight_sums + channel * stride_weight_sums", "weight_sums + channel * 0"),
    _own("missing part of K", "parts + (part * M + row) * N", "parts + row * N", "triton and parts"),
    _own("parts overlap", "out + split.to(tl.int64) * M * N + to", "out + to", "triton and parts"),
    _own("skip the tail", "tl.minimum(first + steps, tl.cdiv(K, BLOCK_K))", "tl.minimum(first + steps, K // BLOCK_K)"),
    _own("missing mask of the result", "(row < M)[:, None] & (channel < N)", "(row < M)[:, None] & (channel <= N)"),
    _own(
        "32-bit offsets",
        "tl.minimum(channel, N - 1).to(tl.int64)\n    at_a",
        "tl.minimum(channel, N - 1)\n    at_a",
        "triton and offsets",
    ),
]
