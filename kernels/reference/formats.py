"""8-bit floats by their definition, and what all encoders share: scales and quotients.

OCP 8-bit Floating Point Specification 1.0, 2023; Micikevicius et al. 2022, arXiv:2209.05433. No cast of torch is used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch

SMALLEST_SCALE: Final = 2.0**-126
"""The smallest normal float32, so that a row of zeros has a scale to divide by."""


@dataclass(frozen=True, slots=True)
class Fp8Format:
    """A sign bit, an exponent field e and a mantissa field m of M bits.

    The magnitude is (1 + m / 2**M) · 2**(e - bias); that of subnormal values, e = 0, is m / 2**M · 2**(1 - bias).
    """

    mantissa_bits: int
    """M."""
    bias: int
    largest_code: int
    infinity: int | None
    """The code of +inf, if there is one; every other code above the largest is NaN."""

    @property
    def smallest_exponent(self) -> int:
        """Of a normal value; subnormal values have it too."""
        return 1 - self.bias

    @property
    def largest(self) -> float:
        """The largest finite value."""
        field, mantissa = divmod(self.largest_code, 1 << self.mantissa_bits)
        return math.ldexp(1 + math.ldexp(mantissa, -self.mantissa_bits), field - self.bias)


FP8_FORMATS: Final = {
    torch.float8_e4m3fn: Fp8Format(mantissa_bits=3, bias=7, largest_code=0x7E, infinity=None),
    torch.float8_e5m2: Fp8Format(mantissa_bits=2, bias=15, largest_code=0x7B, infinity=0x7C),
}
_NAN_CODE: Final = 0x7F
_SIGN: Final = 0x80


def encode_fp8(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Codes of the nearest values, ties to the even code; ±inf and what is too large saturate, NaN stays NaN."""
    form = FP8_FORMATS[dtype]
    wide = x.double()
    magnitude = wide.abs().nan_to_num(nan=0.0).clamp(max=form.largest)
    # 2**exponent ≤ magnitude < 2**(exponent + 1), or the exponent of subnormal values.
    exponent = torch.frexp(magnitude.clamp(min=2.0**form.smallest_exponent)).exponent - 1
    # Neighbouring values differ by 2**(exponent - M). `round` takes ties to even; a carry moves to the next exponent.
    steps = torch.round(torch.ldexp(magnitude, form.mantissa_bits - exponent)).long()
    codes = ((exponent - form.smallest_exponent).long() << form.mantissa_bits) + steps
    codes = torch.where(wide.isnan(), _NAN_CODE, codes) + torch.where(wide.signbit(), _SIGN, 0)
    return codes.to(torch.uint8).view(dtype)


def decode(q: torch.Tensor) -> torch.Tensor:
    """The values of codes (FP8, integers) or of plain numbers, in float64."""
    if q.dtype not in FP8_FORMATS:
        return q.double()
    form = FP8_FORMATS[q.dtype]
    bits = q.view(torch.uint8).long()
    code = bits & ~_SIGN
    field = code >> form.mantissa_bits
    significand = code % 2**form.mantissa_bits + torch.where(field > 0, 2**form.mantissa_bits, 0)
    value = torch.ldexp(significand.double(), field.clamp(min=1) - form.bias - form.mantissa_bits)
    value = torch.where(code > form.largest_code, torch.nan, value)
    if form.infinity is not None:
        value = torch.where(code == form.infinity, torch.inf, value)
    return torch.where(bits >= _SIGN, -value, value)


def scales(x: torch.Tensor, largest: float, scale_ub: float | None = None) -> torch.Tensor:
    """[..., 1] float32: the largest finite magnitude of each row / `largest`, at most `scale_ub`, at least 2**-126."""
    magnitudes = torch.where(x.isfinite(), x, 0).double().abs()
    # A zero beside each row: the largest of nothing is 0.
    amax = torch.cat((magnitudes, magnitudes.new_zeros(*x.shape[:-1], 1)), dim=-1).amax(-1, keepdim=True)
    scale = (amax / largest).float()
    if scale_ub is not None:
        scale = scale.clamp(max=scale_ub)
    return scale.clamp(min=SMALLEST_SCALE)


def quotient(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """x / scale rounded to float32, in float64."""
    return (x.double() / scale.double()).float().double()
