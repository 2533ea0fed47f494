"""Mutants of the encoder and of the quantizers with one scale for a tensor or a row."""

from __future__ import annotations

from proof.mutants.mutant import Mutant

_ENCODER = "kernels/triton/encode.py"
_FILE = "kernels/triton/quantize.py"
_ENCODING = "tests/kernels/test_encode.py"
_BOTH = "tests/kernels/test_quantize.py tests/kernels/test_quantize_numerics.py"


def _encoder(kind: str, old: str, new: str, tests: str = _ENCODING) -> Mutant:
    return Mutant(kind, _ENCODER, old, new, tests)


def _own(kind: str, old: str, new: str, select: str = "triton") -> Mutant:
    return Mutant(kind, _FILE, old, new, _BOTH, select)


MUTANTS: list[Mutant] = [
    _encoder(
        "drop the clamp",
        "scaled = tl.clamp(scaled, -bound, bound, propagate_nan=tl.PropagateNan.ALL)\n    first",
        "first",
    ),
    _encoder(
        "drop the clamp by a power of two",
        "return tl.clamp(scaled, -largest, largest, propagate_nan=tl.PropagateNan.ALL).to(dtype)",
        "return scaled.to(dtype)",
    ),
    _encoder(
        "lose NaN",
        "scaled = tl.clamp(scaled, -bound, bound, propagate_nan=tl.PropagateNan.ALL)",
        "scaled = tl.minimum(tl.maximum(scaled, -bound), bound)",
    ),
    _encoder("multiply by the inverse", "return tl.fma(tl.fma(first, m, -scaled), -y, first)", "return first"),
    _encoder("lose the sign of zero", "tl.fma(tl.fma(first, m, -scaled), -y, first)", "first - tl.fma(first, m, -scaled) * y + 0.0"),
    _encoder("overflow at the largest scales", "tl.minimum(bits >> 23, 253)", "bits >> 23"),
    _encoder("forget the subnormal inverse", "tl.where(field == 254, 0x400000, (254 - field) << 23)", "((254 - field) << 23)"),
    _encoder("clamp above the largest", "largest * BELOW_LARGEST", "largest * 1.01"),
    _encoder("clamp below the tie", "tl.constexpr(63 / 64)", "tl.constexpr(15 / 16)"),
    _encoder("wrong rounding of int8", "value + 12582912.0", "value + 12582913.0"),
    _encoder("drop the clamp of int8", "tl.minimum(value, 127.0)", "value"),
    _encoder("NaN in int8", "tl.where(value == value, tl.minimum(value, 127.0), 0.0)", "tl.minimum(value, 127.0)"),
    _encoder("infinity in the scale", "tl.abs(tl.fma(wide, tl.zeros_like(wide), wide))", "tl.abs(wide)", _BOTH),
    _encoder("drop the least scale", "return tl.maximum(scale, SMALLEST_SCALE)", "return scale", _BOTH),
    _encoder("forget the upper bound", "scale = tl.minimum(scale, scale_ub)", "scale = scale", _BOTH),
    _encoder("NaN takes the upper bound", "amax = tl.maximum(amax, 0.0)\n", "", _BOTH),
    _own("drop the least static scale", "known = tl.maximum(known, SMALLEST_SCALE, propagate_nan=tl.PropagateNan.ALL)", "known = known"),
    _own("skip the tail of rows", "(tile % across).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]", "(tile % across).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :] * 2"),
    _own("ignore the outer stride", "outer * stride_a + (row - outer * B) * stride_b", "row * stride_b"),
    _own("ignore the column's stride", "* stride_b + column * stride_c", "* stride_b + column"),
    _own("32-bit offsets", "    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]\n    column = tl.arange(0, BLOCK_N)[None, :].to(tl.int64)", "    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]\n    column = tl.arange(0, BLOCK_N)[None, :]", "triton and beyond"),
    _own("only the program's own largest", "scale = scale_of(tl.max(found, axis=0), LARGEST, scale_ub, BOUNDED)\n    if", "scale = scale_of(tl.load(largest), LARGEST, scale_ub, BOUNDED)\n    if"),
    _own("one tile a program", "finite_magnitude(value))\n    tl.store(largest", "finite_magnitude(value) * (tile < tl.num_programs(0)))\n    tl.store(largest"),
    _own("write past the rows", "tl.store(out_scale + row, scale, mask=row < rows)", "tl.store(out_scale + row, scale)"),
    _own("only the first step of a long row", "amax = tl.maximum(amax, finite_magnitude(tl.load(x + at, mask=column < C, other=0.0)))", "amax = tl.maximum(amax, finite_magnitude(tl.load(x + at, mask=column < BLOCK_N, other=0.0)))"),
    _own("a scale a row where one a column is meant", 'return "element" if varies[2] else "row"', 'return "row" if varies[2] else "row"'),
]  # fmt: skip
