"""Mutants of encoding to MX and NVFP4, and of decoding."""

from __future__ import annotations

from proof.mutants.mutant import Mutant


def _own(kind: str, old: str, new: str) -> Mutant:
    return Mutant(
        kind,
        "kernels/triton/microscaling.py",
        old,
        new,
        "tests/kernels/test_microscaling.py",
        "triton and not every_half",
    )


MUTANTS: list[Mutant] = [
    _own("drop the clamp", "tl.minimum(tl.where(x == x, tl.abs(x), 0.0), 6.0)", "tl.where(x == x, tl.abs(x), 0.0)"),
    _own("ties away from zero", "0x1FFFFF + ((of_magnitude >> 22) & 1)", "0x200000"),
    _own("swap the halves of a byte", "(low | (high << 4))", "(high | (low << 4))"),
    _own("lose the sign", "codes | tl.where(x == x, (bits >> 28) & 8, 0)", "codes"),
    _own("missing NaN rule", "field = tl.where(nan != 0, 255, field)", "field = tl.where(nan != 0, field, field)"),
    _own("missing NaN rule of NVFP4", "tl.where(nan != 0, 0x7F, stored", "tl.where(nan != 0, 0x38, stored"),
    _own("exponent below the least", "- EXPONENT, 0)", "- EXPONENT, 1)"),
    _own("scale without its rounding", "+ ADDED) >> 23", "+ 0 * ADDED) >> 23"),
    _own("quantize with the scale before rounding", "by_block = stored.to(tl.float32) * over_all", "by_block = exact * over_all"),
    _own("no scale for zeros", "exact = tl.where(exact == 0.0, 1.0, exact)", "exact = exact + 0.0"),
    _own("no least scale", "tl.clamp(exact, _SMALLEST_E4M3, 448.0", "tl.clamp(exact, 0.0, 448.0"),
    _own("static scale below the least", "over_all = tl.maximum(tl.load(global_scale), SMALLEST_SCALE, propagate_nan=tl.PropagateNan.ALL)", "over_all = tl.load(global_scale)"),
    _own("missing global scale", "by_block = decode_e4m3(stored) * tl.load(global_scale)", "by_block = decode_e4m3(stored)"),
    _own("subnormal scale as zero", "tl.where(field == 0, 0x400000, field << 23)", "field << 23"),
    _own("NaN scale as infinity", "tl.where(field == 255, 0x7FC00000, power)", "power"),
    _own("stale block", "block * BLOCK + tl.arange(0, BLOCK)[None, :], row < M", "0 * block + tl.arange(0, BLOCK)[None, :], row < M"),
    _own("write past the last row", "return row, block, block * BLOCK + tl.arange(0, BLOCK)[None, :], row < M", "return row, block, block * BLOCK + tl.arange(0, BLOCK)[None, :], row <= M"),
    _own("skip the ragged block", "codes, mask=mask)\n    tl.store(out_scale + row * blocks + block, field", "codes, mask=mask & (column < K // BLOCK * BLOCK))\n    tl.store(out_scale + row * blocks + block, field"),
]  # fmt: skip
