"""Mutants of the products of FP8 with FP8."""

from __future__ import annotations

from proof.mutants.mutant import Mutant

_TILES = "kernels/triton/scaled_mm_tiles.py"
_HOST = "kernels/triton/scaled_mm.py"
_OPERATOR = "kernels/operators/scaled_mm.py"
_TESTS = "tests/kernels/test_scaled_mm.py"
_CHOICE = "tests/kernels/test_scaled_mm_choice.py"


def _mutant(
    kind: str, old: str, new: str, file: str = _TILES, tests: str = _TESTS, select: str = "", equivalent: str = ""
) -> Mutant:
    return Mutant(kind, file, old, new, tests, select, equivalent)


MUTANTS = [
    _mutant(
        "drop the clamp",
        "        sums = tl.clamp(sums, -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)\n",
        "        sums = sums\n",
    ),
    _mutant("missing NaN rule", "-LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL)", "-LARGEST, LARGEST)"),
    _mutant(
        "swap the scales", "stride_scale_a), tl.load(scale_b + channel", "stride_scale_a), tl.load(scale_a + channel"
    ),
    _mutant("skip the tail of K", "tl.cdiv(K, BLOCK_K))", "K // BLOCK_K)"),
    _mutant("missing mask of K", "inside = column[None, :] < K - step * BLOCK_K", "inside = column[None, :] < BLOCK_K"),
    _mutant(
        "missing mask of rows",
        "(row < M)[:, None] & (channel < N)[None, :]",
        "(row < M + 1)[:, None] & (channel < N)[None, :]",
        select="nothing_beside_the_result",
    ),
    _mutant(
        "missing mask of channels",
        "(row < M)[:, None] & (channel < N)[None, :]",
        "(row < M)[:, None] & (channel <= N)[None, :]",
    ),
    _mutant("int32 offsets", "tl.minimum(row, M - 1).to(tl.int64), tl", "tl.minimum(row, M - 1), tl"),
    _mutant(
        "int32 offsets of channels",
        "tl.minimum(channel, N - 1).to(tl.int64)\n    at_a",
        "tl.minimum(channel, N - 1)\n    at_a",
    ),
    _mutant("off-by-one group of b", "(start_n // GROUP).to", "(start_n // GROUP // 2).to"),
    _mutant("stale scales of a step", "tl.minimum(step + 1, last - 1)", "step"),
    _mutant("scales on the wrong axis", "scale_now[:, None]", "scale_now[None, :]"),
    _mutant("missing bias", "    if bias is not None:\n", "    if False:\n"),
    _mutant("scale of the result multiplies", "return encode(sums, scale,", "return encode(sums, 1 / scale,"),
    _mutant("missing part of K", "tl.static_range(SPLITS)", "tl.static_range(SPLITS - 1)"),
    _mutant("scales of rows applied to each part", "    if SPLIT:\n", "    if SPLIT and GROUP:\n"),
    _mutant("too few steps in a part", "steps=-(-steps // parts)", "steps=steps // parts", _HOST),
    _mutant("one scale read as many", "scale_a.stride(0) if scale_a.numel() > 1 else 0", "scale_a.stride(0)", _HOST),
    _mutant("strides along K ignored", "return x if x.stride(1) == 1 else x.contiguous()", "return x", _HOST),
    _mutant(
        "padding that is not zero",
        "copy = torch.zeros((x.shape[0], columns), dtype",
        "copy = torch.full((x.shape[0], columns), 127, dtype",
        _HOST,
    ),
    _mutant(
        "blocks read as rows",
        "if _of_rows(b, scale_b) and _of_rows(a, scale_a):",
        "if _of_rows(a, scale_a):",
        _OPERATOR,
        _CHOICE,
    ),
    _mutant(
        "fast accumulation by default",
        "shape_class(a.shape[0]), 0)",
        'f"{shape_class(a.shape[0])}, fast accumulation", 0)',
        _HOST,
        equivalent="the interpreter sums in float32 either way; the machine code is looked at for the additions",
    ),
]
