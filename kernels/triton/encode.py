"""Encoding to 8 bits inside a kernel: scales and codes are those of `policyquant.kernels.reference`, to the bit.

The quotient x / scale, rounded to float32, decides the code, so an approximate one gives other codes near ties. Exact
division takes about ten instructions an element. `quotient` takes six, and what is said here is why it is enough.

1. scale = m · 2**e by its bits, with 1 ≤ m < 2 (2 ≤ m < 4 for the largest scales, so that 2**-e is a normal number).
   x' = x · 2**-e is exact, unless it is so large that it is clamped or so small that its code is zero.
2. x' is clamped to ± m · 63/64 of the largest value, whose code is that of the largest value, since the tie with the
   value before lies at 27/28 of it (E4M3) or 13/14 (E5M2). Infinities are finite from here on; NaN stays.
3. y = 1 / m is rounded to nearest once a row. Then, fma rounding once (Markstein 1990, IBM Journal of Research and
   Development 34(1), 111-119):

       q0 = x' · y,   r = q0 · m - x' exactly,   q = q0 - r · y

   |q0 · m - x'| is at most 3/2 of a unit in the last place of q0, times m, and r is a float32. So q errs by half a unit
   and by 3/2 · 2**-24 of one, and lies on the right side of a tie t that is 2 units or more from x' / m.
4. For x' within 4 units of t · m, all cases were tried: t with every significand 1 + i / 16, those of E4M3's and
   E5M2's ties, each of the 2**23 significands of m: q was the quotient that division rounds to in each of the
   1.2 · 10**9. Exponents do not matter, since nothing overflows and nothing on the way is below 2**-126 where
   |q| ≥ 2**-18. The ties of int8, 1 + i / 256, were tried likewise. The tests repeat a sample.

r has the sign that leaves zero's sign alone: -0 gives r = +0, and q0 - r · y = -0.
"""

from __future__ import annotations

import triton
import triton.language as tl

SMALLEST_SCALE = tl.constexpr(2.0**-126)
LARGEST_FLOAT = tl.constexpr(3.4028234663852886e38)
BELOW_LARGEST = tl.constexpr(63 / 64)
"""This part of an FP8 format's largest value has its code."""


@triton.jit
def finite_magnitude(x):
    """|x|, or NaN where x is NaN or infinite, which `tl.max` and `tl.maximum` pass over; float32.

    Infinity · 0 is NaN. A comparison and a choice would take two operations of the pipe that maxima need.
    """
    wide = x.to(tl.float32)
    return tl.abs(tl.fma(wide, tl.zeros_like(wide), wide))


@triton.jit
def scale_of(amax, largest: tl.constexpr, scale_ub, bounded: tl.constexpr):
    """amax / largest as IEEE division rounds it, at most `scale_ub` if `bounded`, at least 2**-126.

    An amax that is NaN, since nothing was finite, counts as 0.
    """
    amax = tl.maximum(amax, 0.0)
    scale = tl.math.div_rn(amax, largest + amax * 0.0)
    if bounded:
        scale = tl.minimum(scale, scale_ub)
    return tl.maximum(scale, SMALLEST_SCALE)


@triton.jit
def next_power_of_two(scale):
    """The least power of two that is not below a normal `scale`, by its bits; at most 2**127."""
    bits = scale.to(tl.int32, bitcast=True)
    bits = tl.minimum((bits + 0x7FFFFF) & 0x7F800000, 0x7F000000)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def quotient(x, scale, limit: tl.constexpr):
    """x / scale for the sake of a code, clamped to about ± limit; `scale` is normal and broadcasts against x.

    What it differs in from the rounded quotient decides no code, see above. A NaN scale gives NaN, an infinite one 0.
    """
    bits = scale.to(tl.int32, bitcast=True)
    field = tl.minimum(bits >> 23, 253)
    m = (bits - ((field - 127) << 23)).to(tl.float32, bitcast=True)
    inverse = ((254 - field) << 23).to(tl.float32, bitcast=True)
    y = tl.math.div_rn(m * 0.0 + 1.0, m)
    inverse = tl.where(scale <= LARGEST_FLOAT, inverse, tl.where(scale == scale, 0.0, scale))
    # Of the same shape: only then is the clamp recognized as one instruction.
    scaled, bound = tl.broadcast(x.to(tl.float32) * inverse, m * limit)
    scaled = tl.clamp(scaled, -bound, bound, propagate_nan=tl.PropagateNan.ALL)
    first = scaled * y
    return tl.fma(tl.fma(first, m, -scaled), -y, first)


@triton.jit
def encode(x, scale, largest: tl.constexpr, dtype: tl.constexpr):
    """FP8 codes of x / scale; `scale` ≥ 2**-126 broadcasts against x. NaN stays NaN, ±inf saturates.

    The quotient is clamped before the cast, which is not trusted to saturate.
    """
    return quotient(x, scale, largest * BELOW_LARGEST).to(dtype)


@triton.jit
def encode_by_power_of_two(x, scale, largest: tl.constexpr, dtype: tl.constexpr):
    """The same for a scale that is a power of two: its inverse is a float32 too, and products with it are exact."""
    field = scale.to(tl.int32, bitcast=True) >> 23
    # 2**-127 is subnormal.
    inverse = tl.where(field == 254, 0x400000, (254 - field) << 23).to(tl.float32, bitcast=True)
    scaled = x.to(tl.float32) * inverse
    return tl.clamp(scaled, -largest, largest, propagate_nan=tl.PropagateNan.ALL).to(dtype)


@triton.jit
def encode_int8(x, scale):
    """Codes in [-128, 127] of x / scale, ties to even; NaN, which int8 lacks, has code 0."""
    value = quotient(x, scale, 128.0)
    value = tl.where(value == value, tl.minimum(value, 127.0), 0.0)
    return nearest_integer(value).to(tl.int8)


@triton.jit
def nearest_integer(value):
    """The nearest int32 of a float32 of less than 2**22, ties to even."""
    # With 1.5 · 2**23 added no bits are left for fractions.
    return (value + 12582912.0).to(tl.int32, bitcast=True) - 0x4B400000
