"""Mutants of products with 4-bit weights."""

from __future__ import annotations

from proof.mutants.mutant import Mutant


def _own(kind: str, old: str, new: str, select: str = "triton and (product or exact or layout or part)") -> Mutant:
    return Mutant(
        kind, "kernels/triton/int4_weight_only_mm.py", old, new, "tests/kernels/test_int4_weight_only_mm.py", select
    )


MUTANTS: list[Mutant] = [
    _own("swap the halves of a byte", "tl.interleave(pairs & 15, pairs >> 4)", "tl.interleave(pairs >> 4, pairs & 15)"),
    _own("another zero", "values -= 8388616.0", "values -= 8388615.0"),
    _own("missing zero point", "(zero.to(tl.float32) + 8388608.0)", "(zero.to(tl.float32) * 0 + 8388616.0)"),
    _own("off by one group", "start * 2 // GROUP,", "start // GROUP,"),
    _own("one scale for all rows", "scale + rows * stride_scale_row", "scale + rows * 0"),
    _own("swap the strides of zero points", "group * stride_zero_column", "group * stride_zero_row"),
    _own("missing mask of K", "(k < K - start * 2)", "(k < K)"),
    Mutant(
        "missing mask of bytes",
        "kernels/triton/int4_weight_only_mm.py",
        "(byte < packed_columns - start)",
        "(byte < packed_columns)",
        "tests/kernels/test_int4_weight_only_mm.py",
        equivalent="what lies behind a row is multiplied by the zeros that stand for x there; that it is read at all"
        " shows in a GPU's sanitizer alone",
    ),
    _own(
        "skip the tail",
        "tl.minimum(begin + BYTES_OF_PART, packed_columns)",
        "tl.minimum(begin + BYTES_OF_PART, K // 2)",
    ),
    _own(
        "missing bias", "sums += tl.load(bias + rows * stride_bias", "sums += 0.0 * tl.load(bias + rows * stride_bias"
    ),
    _own("bias in every part", "if PARTS == 1 and bias is not None:", "if bias is not None:"),
    _own("parts overlap", "(part.to(tl.int64) * M + m)[:, None]", "(part.to(tl.int64) * 0 + m)[:, None]"),
    _own(
        "32-bit offsets",
        "rows, wide_k, wide_byte = n.to(tl.int64),",
        "rows, wide_k, wide_byte = n,",
        "triton and offsets",
    ),
]
