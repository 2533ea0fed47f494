"""How far a right operator may be from its reference, by formulas that follow from the formats alone.

One rounding to nearest in a format with p significant bits errs by at most 2**-p of the value, or by half of the
smallest subnormal value if that is more (Higham 2002, Accuracy and Stability of Numerical Algorithms, sections 2.1 and
2.2). For float32 the two are U = 2**-24 and 2**-150.
"""

from __future__ import annotations

from typing import Final

import torch

from policyquant.kernels.reference import FP8_FORMATS

U: Final = 2.0**-24
"""Largest relative error of one rounding to float32."""

UNDERFLOW: Final = 2.0**-150
"""Half of the smallest subnormal float32."""

LARGEST_FLOAT32: Final = torch.finfo(torch.float32).max


def half_subnormal(dtype: torch.dtype) -> float:
    """Half of the smallest subnormal value: the largest error of a rounding near zero."""
    return torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps / 2


def rounding(y: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Of one rounding of y to a plain dtype."""
    return y.abs() * torch.finfo(dtype).eps / 2 + half_subnormal(dtype)


def encoding(x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """|x - q · scale| at most, element by element, for finite x; float64.

    The quotient x / scale is rounded to float32, which errs by U · |x / scale| + 2**-150, then to the nearest code:

    - FP8 with M mantissa bits: by half a step of its binade, at most 2**-(M + 1) of the value, or half a step of the
      subnormal values, 2**(smallest exponent - M - 1).
    - int8: by half a step of 1. The largest magnitude has the quotient 127.5 · (1 ± 2 U), half a step off 127 too.

    Beyond the format's largest value F the code is F, and the error is the excess |x| - F · scale.
    """
    exact, scale = x.double().abs(), scale.double()
    if dtype == torch.int8:
        return scale * 0.5 + exact * 3 * U + scale * UNDERFLOW
    form = FP8_FORMATS[dtype]
    relative = 2.0 ** -(form.mantissa_bits + 1)
    subnormal = 2.0 ** (form.smallest_exponent - form.mantissa_bits - 1)
    nearest = torch.maximum(exact * relative, scale * subnormal) + exact * 2 * U + scale * UNDERFLOW
    return torch.maximum(nearest, exact - form.largest * scale)


def product(
    magnitude: torch.Tensor, terms: int, scale_a: torch.Tensor | float = 0.0, scale_b: torch.Tensor | float = 0.0
) -> torch.Tensor:
    """Of a product of matrices in float32, before its last rounding: |sums · scale_a · scale_b + bias - exact|.

    `terms` products are rounded and summed in any order, then come two scales and a bias: n = terms + 4 roundings at
    most on the way of each product, so n · U / (1 - n · U) of `magnitude` = Σ |a · b| · scale_a · scale_b + |bias|
    (Higham 2002, section 3.1). Where sums · scale_a underflows, 2**-150 is multiplied by the other scale.
    """
    n = (terms + 4) * U
    return n / (1 - n) * magnitude + UNDERFLOW * (1 + scale_a + scale_b)


def assert_within(y: torch.Tensor, exact: torch.Tensor, bound: torch.Tensor) -> None:
    """|y - exact| ≤ bound for each element, before y was rounded to its dtype.

    Elements that may lie beyond the largest value of y's dtype may be infinite; NaN must be where exact has it.
    """
    allowed = bound + rounding(exact.abs() + bound, y.dtype)
    overflows = exact.abs() + allowed > torch.finfo(y.dtype).max
    infinite = y.isinf() & (y.signbit() == exact.signbit())
    right = ((y.double() - exact).abs() <= allowed) | (overflows & infinite) | (y.isnan() & exact.isnan())
    if not bool(right.all()):
        index = tuple((~right).nonzero()[0].tolist())
        raise AssertionError(
            f"at {index}: found {float(y[index])!r}, expected {float(exact[index])!r} ± {float(allowed[index])!r}"
        )
