"""Mutants of the CUDA sources, compiled for the CPU, where every thread runs."""

from __future__ import annotations

from proof.mutants.mutant import Mutant

_QUANTIZE = "tests/kernels/test_quantize.py tests/kernels/test_quantize_numerics.py"
_GROUPS = "tests/kernels/test_group_quantize.py"
_FUSED = "tests/kernels/test_fused_outputs.py"
_LIBRARY = "tests/kernels/test_cuda.py"


def _of(file: str, source: str, tests: str, kind: str, old: str, new: str, select: str = "cuda") -> Mutant:
    return Mutant(kind, f"kernels/cuda/{file}", old, new, tests, select, sources=(source,))


def _elements(
    kind: str, old: str, new: str, source: str = "quantize", tests: str = _QUANTIZE, select: str = "cuda"
) -> Mutant:
    return _of("elements.cuh", source, tests, kind, old, new, select)


def _arithmetic(kind: str, old: str, new: str, tests: str = _QUANTIZE) -> Mutant:
    return _of("arithmetic.cuh", "quantize", tests, kind, old, new)


def _pairs(kind: str, old: str, new: str, select: str) -> Mutant:
    return _of("pairs.cuh", "quantize", _LIBRARY, kind, old, new, select)


def _norm(kind: str, old: str, new: str) -> Mutant:
    return _of("norm.cu", "norm", _FUSED, kind, old, new, "cuda and norm")


MUTANTS: list[Mutant] = [
    _arithmetic("drop the clamp", "  if (magnitude >= kLargest) return uint8_t(sign | kLargestCode);\n", ""),
    _arithmetic("wrong rounding", "(1u << (kDropped - 1)) - 1u + ((magnitude >> kDropped) & 1u)", "(1u << (kDropped - 1))"),
    _arithmetic("NaN saturates", "if (magnitude > 0x7F800000u) return 0x7Fu;", "if (magnitude > 0x7F800000u) return kLargestCode;"),
    _arithmetic("drop the least static scale", "return scale < kSmallestScale ? kSmallestScale : scale;", "return scale;"),
    _arithmetic("forget the upper bound", "std::fmin(quotient_by(amax, largest, 1.0f / largest), bound)", "quotient_by(amax, largest, 1.0f / largest)"),
    _of("arithmetic.cuh", "group_quantize", _GROUPS, "powers of two rounded down", "((bits & 0x7FFFFFu) != 0u ? 1u : 0u)", "0u"),
    _pairs("the remainder by the lower inverse", "std::fma(-high_, divisor, 1.0f) * inverse;", "std::fma(-high_, divisor, 1.0f) * high_;", "two_operations"),
    _pairs("the quotient in one operation", "std::fma(a, high_, a * low_)", "a * high_", "two_operations"),
    _pairs("no shift by the largest scales", "shifts_(std::is_same_v<T, bfloat16> && scale > kMost)", "shifts_(false)", "ends_of_float32"),
    _elements("skip the tail", "pack.values[i] = column + i < columns ?", "pack.values[i] = column + kPack <= columns ?"),
    _elements("write past the rows", "if (column + i < columns) row[(column + i) * stride] = pack.values[i];", "row[(column + i) * stride] = pack.values[i];"),
    _elements("infinity in the scale", "if (largest <= kLargestFloat) return largest;", "return largest;"),
    _elements("ignore the outer stride", "return outer * outer_stride + (row - outer * by_inner.divisor) * inner_stride;", "return row * inner_stride;"),
    _elements("32-bit offsets", "return outer * outer_stride + (row - outer * by_inner.divisor) * inner_stride;", "return int32_t(outer * outer_stride + (row - outer * by_inner.divisor) * inner_stride);", select="cuda and beyond"),
    _elements("division one too small", "std::max(divisor, 1u) + 1);", "std::max(divisor, 1u));"),
    _elements("no barrier before the sums are read", "shared[warp] = x;\n  __syncthreads();", "shared[warp] = x;"),
    _elements("no barrier before the sums are written again", "  __syncthreads();  // before `shared` is written again\n", "", "norm", _FUSED, "cuda and norm"),
    _elements("largest over the wrong lanes", "(lanes - 1) & distance", "lanes & distance", "group_quantize", _GROUPS),
    _of("scaled_encoding.cuh", "group_quantize", _GROUPS, "the scale of another group", "place >> group_shift", "place >> (group_shift ^ 1)"),
    _of("scaled_encoding.cuh", "group_quantize", _GROUPS, "scales are not powers of two", "if (power_of_two) value = power_of_two_from(value);", ""),
    _of("scaled_encoding.cuh", "quantize", _QUANTIZE, "one pack a thread", "amax = fmaxf(amax, largest_finite(source.load(row, int64_t(pack) * kPack)));", ""),
    _of("quantize.cu", "quantize", _QUANTIZE, "the last block's largest is forgotten", "layout.packs() > 0 ? int(blocks) : 0", "layout.packs() > 0 ? int(blocks) - 1 : 0"),
    _of("quantize.cu", "quantize", _QUANTIZE, "only the first pack of each thread", "pack < packs; pack += gridDim.x * kThreads", "pack < packs; pack += packs"),
    _of("activation.cu", "activation", _FUSED, "the gate for both", "load_pack<T, kAligned>(gates + columns * stride, column", "load_pack<T, kAligned>(gates, column", "cuda and silu"),
    _norm("the sum is not stored", "      store_pack<T, kAligned>(sum_, column, norm_.columns, values);\n", ""),
    _norm("the residual is not added", "set_pair(values, i, sum<T>(pair_at(values, i), pair_at(added, i)));", ""),
    _norm("the weight of the first columns", "load_pack<W, kAligned>(weights, column,", "load_pack<W, kAligned>(weights, 0,"),
    Mutant(
        "more blocks than there is work for",
        "kernels/cuda/tensors.cuh",
        "return unsigned(std::min(work, most));",
        "return unsigned(most);",
        _QUANTIZE,
        equivalent="a block that finds no work does nothing; kernels whose blocks each leave a result choose their own number",
        sources=("quantize",),
    ),
]  # fmt: skip
