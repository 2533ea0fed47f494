"""Bytes of a weight under a scheme: the arithmetic behind "before and after" and bits per weight.

A weight [out, in] takes its elements at the dtype's width (two 4-bit elements to a byte), one scale for each thing the
granularity names (rounded up at ragged ends), packed 4-bit zero points if it is asymmetric, one more scale for the
tensor where the format has two levels, and one 4-byte scale where the input's scale is stored with it.
"""

from __future__ import annotations

from math import ceil, prod

from policyquant.policy.scheme import BITS, Quantization, Scheme


def scheme_bytes(scheme: Scheme, shape: tuple[int, ...]) -> int:
    """Bytes of one weight of logical shape [..., out, in] with its scales, under a quantizing scheme.

    Leading dimensions (experts) are so many weights.
    """
    assert scheme.weight is not None
    *leading, rows, columns = shape if len(shape) > 1 else (1, *shape)
    return prod(leading) * (_weight_bytes(scheme.weight, rows, columns) + _input_bytes(scheme.input))


def _weight_bytes(weight: Quantization, rows: int, columns: int) -> int:
    scales = _scales(weight, rows, columns)
    total = ceil(rows * columns * BITS[weight.dtype] / 8) + scales * BITS[weight.scale_dtype] // 8
    if not weight.symmetric:
        total += ceil(scales * BITS[weight.dtype] / 8)
    if weight.global_scale_dtype is not None:
        total += BITS[weight.global_scale_dtype] // 8
    return total


def _scales(weight: Quantization, rows: int, columns: int) -> int:
    if weight.granularity == "channel":
        return rows
    if weight.granularity == "group":
        assert weight.group is not None
        return rows * ceil(columns / weight.group)
    if weight.granularity == "block":
        assert weight.block is not None
        return ceil(rows / weight.block[0]) * ceil(columns / weight.block[1])
    return 1


def _input_bytes(input: Quantization | None) -> int:
    if input is None:
        return 0
    return 4 * ((input.scheme == "static") + (input.global_scale_dtype is not None))


def dtype_bytes(dtype: str) -> int:
    """Bytes of one element of a dtype that is not packed."""
    return BITS[dtype] // 8
