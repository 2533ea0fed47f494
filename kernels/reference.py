"""What each operator of `ops` computes, written to be read: the truth that every kernel is held against.

A function has the name of its operator, and its arguments less the dtype of a floating-point result.

- Operators that encode: codes and scales are the operator's own, to the bit. Two roundings to float32 belong to the
  definition: that of the scale, and that of the quotient x / scale, which is then rounded to the nearest code.
- Operators that return floating point: the exact value, in float64. An operator sums in float32 and rounds; each
  function says what it rounds on the way.

An operator that fuses several (an activation or a norm that emits codes, a write to the KV cache) is their composition,
with the rounding to the input's dtype between them.

8-bit floats are encoded and decoded here by their definition (OCP 8-bit Floating Point Specification 1.0, 2023;
Micikevicius et al. 2022, arXiv:2209.05433), not by torch's casts.
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


def static_scaled_fp8_quant(
    x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype = torch.float8_e4m3fn
) -> torch.Tensor:
    """Codes of x / scale."""
    return encode_fp8(quotient(x, scale), dtype)


def dynamic_scaled_fp8_quant(
    x: torch.Tensor, scale_ub: float | None = None, dtype: torch.dtype = torch.float8_e4m3fn
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of x and the one scale [1] of all of it."""
    scale = scales(x.reshape(-1), FP8_FORMATS[dtype].largest, scale_ub)
    return static_scaled_fp8_quant(x, scale, dtype), scale


def per_token_scaled_fp8_quant(
    x: torch.Tensor, scale_ub: float | None = None, dtype: torch.dtype = torch.float8_e4m3fn
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of x and a scale [..., 1] for each row of the last dimension."""
    scale = scales(x, FP8_FORMATS[dtype].largest, scale_ub)
    return static_scaled_fp8_quant(x, scale, dtype), scale


def per_channel_int8_quant(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of w in [-128, 127], ties to even, and a scale [..., 1] for each row; NaN, which int8 lacks, has code 0."""
    scale = scales(w, 127.5)
    codes = quotient(w, scale).nan_to_num(nan=0.0).round().clamp(-128, 127)
    return codes.to(torch.int8), scale


def dequantize(q: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """q · scale. The operator rounds it to float32, then to its dtype."""
    return decode(q) * scale.double()


def scaled_mm(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """(a @ b.T) · scale_a · scale_b.T + bias. The operator rounds sums and products to float32, the result once."""
    return _of_rows(decode(a) @ decode(b).T * scale_a.double(), scale_b, bias)


def int8_weight_only_mm(
    x: torch.Tensor, q: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """(x @ q.T) · scale.T + bias. The operator rounds sums and products to float32, the result once."""
    return _of_rows(decode(x) @ decode(q).T, scale, bias)


def _of_rows(product: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The scale, [1] or [N, 1], and the bias of a weight's rows, applied to a product [M, N]."""
    scaled = product * scale.double().reshape(-1)
    return scaled if bias is None else scaled + bias.double()


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """gate / (1 + exp(-gate)) · up of x = [gate | up]. The operator rounds silu(gate) to x.dtype, then the product."""
    gate, up = x.double().chunk(2, dim=-1)
    return gate / (1 + torch.exp(-gate)) * up


def gelu_and_mul(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """gelu(gate) · up of x = [gate | up], exact or by tanh (Hendrycks and Gimpel 2016, arXiv:1606.08415).

    The operator rounds gelu(gate) to x.dtype, then the product.
    """
    gate, up = x.double().chunk(2, dim=-1)
    if approximate == "tanh":
        share = (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))) / 2
    else:
        share = (1 + torch.erf(gate / math.sqrt(2))) / 2
    return gate * share * up


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x²) + eps) · weight. The operator rounds the normalized x to x.dtype, then the product."""
    wide = x.double()
    return wide / torch.sqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.double()


def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of x + residual, and that sum, which is rounded to x.dtype before it is normalized."""
    total = (x.double() + residual.double()).float().to(x.dtype)
    return rms_norm(total, weight, eps), total
