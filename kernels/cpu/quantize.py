"""Encoding to 8 bits and back, on a CPU."""

from __future__ import annotations

import torch

SMALLEST_SCALE = torch.finfo(torch.float32).tiny
"""Scales are at least the smallest normal float32, so that a row of zeros has one to divide by."""

INT8_HALF_RANGE = 127.5
"""Half of int8's range of 255 steps, -128 to 127: the divisor of compressed-tensors and torchao."""


def static_scaled_fp8_quant(x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Codes of x / scale in `dtype`, clamped to its range first; NaN stays NaN."""
    largest = torch.finfo(dtype).max
    return (x.float() / scale).clamp_(-largest, largest).to(dtype).contiguous()


def dynamic_scaled_fp8_quant(
    x: torch.Tensor, scale_ub: float | None, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and the one scale of the whole tensor."""
    scale = _fp8_scale(x.reshape(-1), scale_ub, dtype)
    return static_scaled_fp8_quant(x, scale, dtype), scale


def per_token_scaled_fp8_quant(
    x: torch.Tensor, scale_ub: float | None, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and one scale for each row of the last dimension."""
    scale = _fp8_scale(x, scale_ub, dtype)
    return static_scaled_fp8_quant(x, scale, dtype), scale


def per_channel_int8_quant(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes in [-128, 127], ties to even, and one scale for each row of the last dimension; NaN has code 0."""
    scale = (_largest_finite(w) / INT8_HALF_RANGE).clamp_(min=SMALLEST_SCALE)
    codes = (w.float() / scale).nan_to_num_(nan=0.0).round_().clamp_(-128, 127)
    return codes.to(torch.int8).contiguous(), scale


def dequantize(q: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """q · scale in float32, rounded once to `dtype`."""
    return (q.float() * scale).to(dtype)


def _fp8_scale(x: torch.Tensor, scale_ub: float | None, dtype: torch.dtype) -> torch.Tensor:
    """Scales over the last dimension, which is kept with size 1."""
    scale = _largest_finite(x) / torch.finfo(dtype).max
    if scale_ub is not None:
        scale.clamp_(max=scale_ub)
    return scale.clamp_(min=SMALLEST_SCALE)


def _largest_finite(x: torch.Tensor) -> torch.Tensor:
    """The largest finite magnitude over the last dimension, in float32; 0 where there is none."""
    if x.shape[-1] == 0:
        return torch.zeros((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
    magnitude = x.float().abs()
    return magnitude.masked_fill_(~magnitude.isfinite(), 0.0).amax(-1, keepdim=True)
