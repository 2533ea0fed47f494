"""Encoding to blocks of FP8 or FP4 that share a scale of 8 bits, MX and NVFP4, and back.

OCP Microscaling Formats (MX) Specification 1.0, 2023; NVFP4 as NVIDIA's ModelOpt makes it.
"""

from __future__ import annotations

from typing import Final

import torch

from policyquant.kernels.reference.formats import SMALLEST_SCALE, decode, encode_fp8, quotient, scales

MX_BLOCK: Final = 32
NVFP4_BLOCK: Final = 16
FP4_VALUES: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""E2M1's values by the lower three bits of their codes; bit 3 is the sign."""

_LARGEST: Final = {torch.float8_e4m3fn: 448.0, torch.uint8: 6.0}
_MANTISSA_BITS: Final = {torch.float8_e4m3fn: 3, torch.uint8: 1}
_EXPONENT_BIAS: Final = 127
_NAN_SCALE: Final = 255


def mxfp8_quant(x: torch.Tensor, scaling_mode: str = "floor") -> tuple[torch.Tensor, torch.Tensor]:
    """E4M3 codes of x [..., K] and a power of two for each block of 32, [..., ceil(K / 32)] float8_e8m0fnu."""
    exponent = _exponents(_largest(x, MX_BLOCK), torch.float8_e4m3fn, scaling_mode)
    scaled = torch.ldexp(x.double(), -_spread(exponent, MX_BLOCK, x.shape[-1]))
    return encode_fp8(scaled, torch.float8_e4m3fn), (exponent + _EXPONENT_BIAS).to(torch.uint8).view(
        torch.float8_e8m0fnu
    )


def mxfp4_quant(x: torch.Tensor, scaling_mode: str = "floor") -> tuple[torch.Tensor, torch.Tensor]:
    """The same in E2M1, two codes a byte, the first in the low half. NaN in a block makes its scale NaN."""
    exponent = _exponents(_largest(x, MX_BLOCK), torch.uint8, scaling_mode)
    codes = encode_fp4(torch.ldexp(x.double(), -_spread(exponent, MX_BLOCK, x.shape[-1])))
    stored = torch.where(_holds_nan(x, MX_BLOCK), _NAN_SCALE, exponent + _EXPONENT_BIAS)
    return pack_fp4(codes), stored.to(torch.uint8).view(torch.float8_e8m0fnu)


def nvfp4_global_scale(x: torch.Tensor) -> torch.Tensor:
    """[1] float32: the largest finite magnitude / (448 · 6), at least 2**-126."""
    return scales(x.reshape(-1), 448.0 * 6.0)


def nvfp4_quant(
    x: torch.Tensor, global_scale: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """E2M1 codes, E4M3 scales of blocks of 16, [..., ceil(K / 16)], and the global scale, [1] float32.

    Part of the definition are four roundings to float32: of 6 · global_scale, of a block's largest magnitude over that,
    of scale · global_scale, and of x over that. A quotient of 0 gives the scale 1, any other one at least 2**-9.
    """
    one = nvfp4_global_scale(x) if global_scale is None else global_scale
    over_all = one.clamp(min=SMALLEST_SCALE)
    exact = quotient(_largest(x, NVFP4_BLOCK), (6 * over_all.double()).float())
    exact = torch.where(exact == 0, 1.0, exact.clamp(min=2.0**-9))
    scale = encode_fp8(exact, torch.float8_e4m3fn)
    by_block = (decode(scale) * over_all.double()).float()
    codes = encode_fp4(quotient(x, _spread(by_block, NVFP4_BLOCK, x.shape[-1])))
    stored = torch.where(_holds_nan(x, NVFP4_BLOCK), 0x7F, scale.view(torch.uint8))
    return pack_fp4(codes), stored.to(torch.uint8).view(torch.float8_e4m3fn), one


def mx_dequantize(q: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """q · scale, of E4M3 codes or packed E2M1 codes. The operator rounds it to float32, then to its dtype."""
    values = decode_elements(q)
    return values * _spread(decode_e8m0(scale), MX_BLOCK, values.shape[-1])


def nvfp4_dequantize(q: torch.Tensor, scale: torch.Tensor, global_scale: torch.Tensor) -> torch.Tensor:
    """q · scale · global_scale, of packed E2M1 codes.

    The product of both scales is rounded to float32 as part of the definition; the operator rounds as `mx_dequantize`.
    """
    values = decode_elements(q)
    by_block = (decode(scale) * global_scale.double()).float().double()
    return values * _spread(by_block, NVFP4_BLOCK, values.shape[-1])


def encode_fp4(x: torch.Tensor) -> torch.Tensor:
    """E2M1 codes of the nearest values, one a byte; ties to the even code, what is too large saturates, NaN has 0."""
    magnitude = x.double().abs()
    codes = torch.zeros(x.shape, dtype=torch.int64)
    for code in range(7):
        tie = (FP4_VALUES[code] + FP4_VALUES[code + 1]) / 2
        codes += (magnitude > tie) | ((magnitude == tie) & (code % 2 == 1))
    codes += torch.where(x.signbit(), 8, 0)
    return torch.where(x.isnan(), 0, codes).to(torch.uint8)


def pack_fp4(codes: torch.Tensor) -> torch.Tensor:
    """[..., K / 2] of [..., K]."""
    return codes[..., ::2] + 16 * codes[..., 1::2]


def decode_elements(q: torch.Tensor) -> torch.Tensor:
    """Values of E4M3 codes, or of E2M1 codes packed two a byte: [..., K / 2] to [..., K]; float64."""
    if q.dtype == torch.float8_e4m3fn:
        return decode(q)
    codes = torch.stack((q % 16, q // 16), dim=-1).flatten(-2).long()
    values = torch.tensor(FP4_VALUES, dtype=torch.float64)[codes % 8]
    return torch.where(codes >= 8, -values, values)


def decode_e8m0(scale: torch.Tensor) -> torch.Tensor:
    """2**(byte - 127), byte 255 being NaN; float64."""
    stored = scale.view(torch.uint8).long()
    power = torch.ldexp(torch.ones(stored.shape, dtype=torch.float64), stored - _EXPONENT_BIAS)
    return torch.where(stored == _NAN_SCALE, torch.nan, power)


def _exponents(largest: torch.Tensor, kind: torch.dtype, scaling_mode: str) -> torch.Tensor:
    """Of the scales of blocks with these largest magnitudes, -127 at least.

    floor: floor(log2(largest)) - floor(log2(F)), F being the format's largest value (OCP MX, section 6.3).
    even: the same of the largest magnitude rounded to the format's mantissa bits, half away from zero.
    rceil: the least with largest ≤ F · 2**exponent.
    """
    top = _LARGEST[kind]
    # x = significand · 2**power with 1/2 ≤ significand < 1.
    significand, power = torch.frexp(largest)
    if scaling_mode == "even":
        steps = 2.0 ** (_MANTISSA_BITS[kind] + 1)
        power = power + (torch.floor(significand * steps + 0.5) == steps)
    exponent = power.long() - int(torch.frexp(torch.tensor(top)).exponent)
    if scaling_mode == "rceil":
        exponent = exponent + (largest > torch.ldexp(torch.full_like(largest, top), exponent))
    return torch.where(largest == 0, -_EXPONENT_BIAS, exponent.clamp(min=-_EXPONENT_BIAS))


def _blocks(x: torch.Tensor, block: int) -> list[torch.Tensor]:
    return [x[..., start : start + block] for start in range(0, x.shape[-1], block)]


def _largest(x: torch.Tensor, block: int) -> torch.Tensor:
    """The largest finite magnitude of each block of a row, 0 where there is none; the last may be shorter."""
    finite = torch.where(x.isfinite(), x, 0).double().abs()
    found = [part.amax(-1) for part in _blocks(finite, block)]
    return torch.stack(found, dim=-1) if found else finite


def _holds_nan(x: torch.Tensor, block: int) -> torch.Tensor:
    found = [part.isnan().any(-1) for part in _blocks(x, block)]
    return torch.stack(found, dim=-1) if found else x.isnan()


def _spread(scale: torch.Tensor, block: int, columns: int) -> torch.Tensor:
    """Each block's scale at each of its elements."""
    return scale.repeat_interleave(block, dim=-1)[..., :columns]
