"""Mutants of the quantizers with a scale for each group or block."""

from __future__ import annotations

from proof.mutants.mutant import Mutant

_FILE = "kernels/triton/group_quantize.py"
_TESTS = "tests/kernels/test_group_quantize.py"


def _own(kind: str, old: str, new: str) -> Mutant:
    return Mutant(kind, _FILE, old, new, _TESTS, "triton")


MUTANTS: list[Mutant] = [
    Mutant("powers of two rounded down", "kernels/triton/encode.py", "(bits + 0x7FFFFF) & 0x7F800000", "bits & 0x7F800000", _TESTS, "triton"),
    Mutant("exact powers of two doubled", "kernels/triton/encode.py", "(bits + 0x7FFFFF)", "(bits + 0x800000)", _TESTS, "triton"),
    _own("quantize with the scale before rounding", "codes = encode_by_power_of_two(value, scale, LARGEST, DTYPE)", "codes = encode(value, scale_of(amax, LARGEST, 0.0, False), LARGEST, DTYPE)"),
    _own("swap rows and groups of scales", "to = out_scale + row * stride_scale_row + group * stride_scale_group", "to = out_scale + row * stride_scale_group + group * stride_scale_row"),
    _own("scales in rows whatever the layout", "to = out_scale + row * stride_scale_row + group * stride_scale_group", "to = out_scale + row * groups + group"),
    _own("stale group", "group = (tile % across).to(tl.int64) * BLOCK_G + line // BLOCK_M", "group = (tile % across).to(tl.int64) + line // BLOCK_M"),
    _own("skip the ragged group", "    mask = (row < M) & (column < K)\n", "    mask = (row < M) & (column < K // GROUP * GROUP)\n"),
    _own("write scales past the rows", "mask=(row < M) & (group < groups))", "mask=group < groups)"),
    _own("read the next row", "    mask = (row < M) & (column < K)\n", "    mask = (row < M) & (column < groups * GROUP)\n"),
    _own("one row's largest for a block", "amax = tl.max(tl.max(finite_magnitude(value), axis=1), axis=0)", "amax = tl.max(tl.max(finite_magnitude(value), axis=1) * (tl.arange(0, BLOCK_N) == 0), axis=0)"),
    _own("ignore the batch", "tl.store(out + (batch * N + row) * K + column, codes, mask=mask)", "tl.store(out + row * K + column, codes, mask=mask)"),
    _own("a scale a row where one a block is meant", "within // ROWS * stride_scale_row", "within * stride_scale_row"),
    _own("decode with the first group's scale", "+ group * stride_scale_group\n    known", "\n    known"),
    _own("ignore the scales' batch", "at = batch * stride_scale_batch + within", "at = within"),
]  # fmt: skip
