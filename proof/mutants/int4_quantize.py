"""Mutants of encoding to 4 bits."""

from __future__ import annotations

from proof.mutants.mutant import Mutant


def _own(kind: str, old: str, new: str, select: str = "triton and (reference or shape or nan or rounded)") -> Mutant:
    return Mutant(kind, "kernels/triton/int4_quantize.py", old, new, "tests/kernels/test_int4_quantize.py", select)


MUTANTS: list[Mutant] = [
    _own("another divisor", "-low), 7.5,", "-low), 7.0,"),
    _own("swap the halves of a byte", "even | odd << 4", "odd | even << 4"),
    _own("the last half is not zero", "tl.where(mask, codes, 0)", "codes"),
    _own("encode with the scale before it was rounded", "divisor = stored.to(tl.float32)", "divisor = scale"),
    _own("missing NaN rule", "tl.where(quotient == quotient, quotient, 0.0)", "tl.minimum(quotient, 1e30)"),
    _own("infinity counts for the scale", "tl.where(tl.abs(value) <= LARGEST_FLOAT, value, 0.0)", "value"),
    _own("drop the clamp", "nearest_integer(tl.clamp(quotient, -8.0, 7.0)) + 8", "nearest_integer(quotient) + 8"),
    _own("off by one zero point", "(zero_point + 8).to(tl.uint8)", "(zero_point + 7).to(tl.uint8)"),
    _own(
        "zero is not among the values",
        "tl.min(finite, axis=1, keep_dims=True), 0.0)",
        "tl.min(finite, axis=1, keep_dims=True), 1e30)",
        "triton and all_codes",
    ),
    _own(
        "off by one group",
        "row, group = line // groups, line % groups",
        "row, group = line // groups, (line + 1) % groups",
    ),
    _own("skip the tail", "(byte < width)", "(byte < K // 2)"),
    _own("a width that overflows", "tl.minimum(high - low, LARGEST_FLOAT)", "high - low", "triton and width"),
    _own("32-bit offsets", "tl.program_id(0).to(tl.int64) * BLOCK_M", "tl.program_id(0) * BLOCK_M", "triton and 31st"),
]
