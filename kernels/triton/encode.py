"""Encoding to FP8 inside a kernel: scales and codes are those of `policyquant.kernels.reference`, to the bit."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

FP8 = {torch.float8_e4m3fn: tl.float8e4nv, torch.float8_e5m2: tl.float8e5}
"""torch's names → Triton's."""

SMALLEST_SCALE = tl.constexpr(2.0**-126)
LARGEST_FLOAT = tl.constexpr(3.4028234663852886e38)


@triton.jit
def finite_magnitude(x):
    """|x|, or 0 where x is NaN or infinite; float32."""
    magnitude = tl.abs(x.to(tl.float32))
    return tl.where(magnitude <= LARGEST_FLOAT, magnitude, 0.0)


@triton.jit
def scale_of(amax, largest: tl.constexpr, scale_ub, bounded: tl.constexpr):
    """amax / largest as IEEE division rounds it, at most `scale_ub` if `bounded`, at least 2**-126."""
    scale = tl.math.div_rn(amax, largest + amax * 0.0)
    if bounded:
        scale = tl.minimum(scale, scale_ub)
    return tl.maximum(scale, SMALLEST_SCALE)


@triton.jit
def encode(x, scale, largest: tl.constexpr, dtype: tl.constexpr):
    """Codes of x / scale; `scale` broadcasts against x. NaN stays NaN, ±inf saturates.

    The quotient is clamped before the cast, which is not trusted to saturate.
    """
    quotient = tl.math.div_rn(x.to(tl.float32), tl.zeros_like(x).to(tl.float32) + scale)
    quotient = tl.clamp(quotient, -largest, largest, propagate_nan=tl.PropagateNan.ALL)
    return quotient.to(dtype)
