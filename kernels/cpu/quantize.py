"""Encoding to 8 bits and back, on a CPU."""

from __future__ import annotations

import math

import torch

SMALLEST_SCALE = torch.finfo(torch.float32).tiny
"""Scales are at least the smallest normal float32, so that a row of zeros has one to divide by."""

INT8_HALF_RANGE = 127.5
"""Half of int8's range of 255 steps, -128 to 127: the divisor of compressed-tensors and torchao."""

_WORTH_A_TABLE = 4096
"""From so many elements on, decoding by a table of all codes is faster than one by one."""

_BITS = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}
"""Dtypes → the integers of their size."""


def static_scaled_fp8_quant(x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Codes of x / scale in `dtype`, clamped to its range first; NaN stays NaN. Scales below 2**-126 count as that."""
    return _quotients(x, scale.clamp(min=SMALLEST_SCALE), dtype).to(dtype, memory_format=torch.contiguous_format)


def static_scaled_fp8_quant_out(x: torch.Tensor, scale: torch.Tensor, *, out: torch.Tensor) -> None:
    """The same into `out`, whose dtype decides."""
    _check_shape("static_scaled_fp8_quant", out, x.shape)
    out.copy_(_quotients(x, scale.clamp(min=SMALLEST_SCALE), out.dtype))


def _quotients(x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """x / scale in float32, clamped to the range of `dtype`."""
    largest = torch.finfo(dtype).max
    return x.to(torch.float32, copy=True).div_(scale).clamp_(-largest, largest)


def dynamic_scaled_fp8_quant(
    x: torch.Tensor, scale_ub: float | None, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and the one scale of the whole tensor."""
    scale = fp8_scale(largest_finite(x.reshape(-1)), scale_ub, dtype)
    return static_scaled_fp8_quant(x, scale, dtype), scale


def dynamic_scaled_fp8_quant_out(
    x: torch.Tensor, scale_ub: float | None, *, out: torch.Tensor, out_scale: torch.Tensor
) -> None:
    """The same into `out`, whose dtype decides, and `out_scale`."""
    _check_shape("dynamic_scaled_fp8_quant", out_scale, (1,))
    out_scale.copy_(fp8_scale(largest_finite(x.reshape(-1)), scale_ub, out.dtype))
    static_scaled_fp8_quant_out(x, out_scale, out=out)


def per_token_scaled_fp8_quant(
    x: torch.Tensor, scale_ub: float | None, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and one scale for each row of the last dimension."""
    scale = fp8_scale(largest_finite(x), scale_ub, dtype)
    return _quotients(x, scale, dtype).to(dtype, memory_format=torch.contiguous_format), scale


def per_token_scaled_fp8_quant_out(
    x: torch.Tensor, scale_ub: float | None, *, out: torch.Tensor, out_scale: torch.Tensor
) -> None:
    """The same into `out`, whose dtype decides, and `out_scale`."""
    _check_shape("per_token_scaled_fp8_quant", out_scale, (*x.shape[:-1], 1))
    out_scale.copy_(fp8_scale(largest_finite(x), scale_ub, out.dtype))
    static_scaled_fp8_quant_out(x, out_scale, out=out)


def per_channel_int8_quant(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes in [-128, 127], ties to even, and one scale for each row of the last dimension; NaN has code 0."""
    out = torch.empty(w.shape, dtype=torch.int8, device=w.device)
    scale = torch.empty((*w.shape[:-1], 1), dtype=torch.float32, device=w.device)
    per_channel_int8_quant_out(w, out=out, out_scale=scale)
    return out, scale


def per_channel_int8_quant_out(w: torch.Tensor, *, out: torch.Tensor, out_scale: torch.Tensor) -> None:
    """The same into `out` and `out_scale`."""
    _check_shape("per_channel_int8_quant", out, w.shape)
    _check_shape("per_channel_int8_quant", out_scale, (*w.shape[:-1], 1))
    largest = largest_finite(w)
    out_scale.copy_((largest / torch.full_like(largest, INT8_HALF_RANGE)).clamp_(min=SMALLEST_SCALE))
    codes = w.to(torch.float32, copy=True).div_(out_scale)
    out.copy_(codes.nan_to_num_(nan=0.0).round_().clamp_(-128, 127))


def dequantize(q: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """q · scale in float32, rounded once to `dtype`."""
    one_scale = scale.numel() == 1 and scale.ndim <= q.ndim
    if not one_scale or q.dtype != torch.float8_e4m3fn or q.device.type != "cpu" or q.numel() < _WORTH_A_TABLE:
        return (q.float() * scale).to(dtype)
    # torch decodes this format with branches, which takes five times as long.
    codes = torch.arange(256, dtype=torch.uint8, device=q.device).view(q.dtype)
    values = (codes.float() * scale.reshape(1)).to(dtype)
    return values.index_select(0, q.view(torch.uint8).int().reshape(-1)).reshape(q.shape)


def _check_shape(name: str, out: torch.Tensor, shape: tuple[int, ...]) -> None:
    if out.shape != shape:
        raise ValueError(f"{name}: an out tensor is {list(out.shape)} {out.dtype}, expected {list(shape)}")


def fp8_scale(largest: torch.Tensor, scale_ub: float | None, dtype: torch.dtype) -> torch.Tensor:
    """The scale under which each magnitude becomes the largest value of `dtype`, or less if `scale_ub` bounds it."""
    # By a tensor: on a GPU torch multiplies by the inverse of a number, which rounds otherwise.
    scale = largest / torch.full_like(largest, torch.finfo(dtype).max)
    if scale_ub is not None:
        scale.clamp_(max=scale_ub)
    return scale.clamp_(min=SMALLEST_SCALE)


def largest_finite(x: torch.Tensor) -> torch.Tensor:
    """The largest finite magnitude over the last dimension, in float32; 0 where there is none."""
    if x.shape[-1] == 0:
        return torch.zeros((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
    largest = largest_magnitude(x)
    # A GPU is not waited for; a CPU is spared the second way through.
    if x.device.type == "cpu" and largest.numel() and math.isfinite(largest.amax().item()):
        return largest
    magnitude = x.float().abs()
    return magnitude.masked_fill_(~magnitude.isfinite(), 0.0).amax(-1, keepdim=True)


def largest_magnitude(x: torch.Tensor) -> torch.Tensor:
    """The largest magnitude over the last dimension, which is kept with size 1, in float32; NaN where there is one.

    Without their signs, the bits of floats order as integers do, infinity above all numbers and NaN above infinity.
    Integers are compared several times faster here than numbers.
    """
    values = x if x.dtype in _BITS else x.float()
    bits = values.view(_BITS[values.dtype])
    largest = bits.bitwise_and(torch.iinfo(bits.dtype).max).amax(-1, keepdim=True)
    return largest.view(values.dtype).float()
