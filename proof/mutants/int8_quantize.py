"""Mutants of encoding to int8."""

from __future__ import annotations

from proof.mutants.mutant import Mutant


def _own(kind: str, old: str, new: str, select: str = "reference or shape or nan or infinity") -> Mutant:
    return Mutant(kind, "kernels/triton/int8_quantize.py", old, new, "tests/kernels/test_int8_quantize.py", select)


MUTANTS: list[Mutant] = [
    _own("another divisor", "-smallest), 127.0,", "-smallest), 127.5,"),
    _own("drop the clamp", "tl.minimum(tl.maximum(shifted, -128), 127)", "shifted"),
    _own("missing NaN rule of a row", 'tl.where(holds_nan, float("nan"), scale)', "tl.where(holds_nan, scale, scale)"),
    _own("a zero point beside a NaN scale", "tl.where(holds_nan, 0, nearest", "tl.where(holds_nan, 1, nearest"),
    _own("missing NaN rule of an element", "tl.where(steps == steps, steps, 0.0)", "tl.minimum(steps, 512.0)"),
    _own("infinity counts for the scale", "tl.where(tl.abs(value) <= LARGEST_FLOAT, value, 0.0)", "value"),
    _own("the smallest element does not count", "tl.maximum(largest, -smallest)", "largest"),
    _own("a width that overflows", "tl.minimum(largest - smallest, LARGEST_FLOAT)", "largest - smallest", "width"),
    _own("zero is not among the values", "high = tl.zeros((BLOCK_M", "high = -1e30 + tl.zeros((BLOCK_M", "zero_is"),
    _own("skip a row's tail", "nan = tl.maximum(nan,", "nan = tl.maximum(0.0 * nan,", "shape or nan"),
    _own(
        "off by one code",
        "exact = tl.clamp(-128.0 - ",
        "exact = tl.clamp(-127.0 - ",
    ),
    _own("32-bit offsets", "row = tl.program_id(0).to(tl.int64) * BLOCK_M", "row = tl.program_id(0) * BLOCK_M", "31st"),
    _own(
        "missing smallest scale",
        "tl.maximum(tl.load(scale), SMALLEST_SCALE, propagate_nan=tl.PropagateNan.ALL)",
        "tl.load(scale)",
        "smallest or static",
    ),
    _own("missing zero point", "tl.load(zero_point), True)", "tl.load(zero_point) * 0, True)", "static"),
]
