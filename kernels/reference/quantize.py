"""Encoding to 8 bits with one scale for a tensor or for each of its rows, and back."""

from __future__ import annotations

import torch

from policyquant.kernels.reference.formats import FP8_FORMATS, SMALLEST_SCALE, decode, encode_fp8, quotient, scales


def static_scaled_fp8_quant(
    x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype = torch.float8_e4m3fn
) -> torch.Tensor:
    """Codes of x / scale; a scale below 2**-126 is taken for 2**-126."""
    return encode_fp8(quotient(x, scale.clamp(min=SMALLEST_SCALE)), dtype)


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


def scaled_fp8_quant(
    x: torch.Tensor,
    scale: torch.Tensor | None = None,
    *,
    per_token: bool = False,
    scale_ub: float | None = None,
    padded_rows: int | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and the scale given, or one of the tensor or of each token, of x with rows of zeros added."""
    if padded_rows is not None and padded_rows > x.shape[0]:
        x = torch.cat((x, x.new_zeros(padded_rows - x.shape[0], x.shape[1])))
    if scale is not None:
        return static_scaled_fp8_quant(x, scale, dtype), scale
    return (per_token_scaled_fp8_quant if per_token else dynamic_scaled_fp8_quant)(x, scale_ub, dtype)


def per_channel_int8_quant(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of w in [-128, 127], ties to even, and a scale [..., 1] for each row; NaN, which int8 lacks, has code 0."""
    scale = scales(w, 127.5)
    codes = quotient(w, scale).nan_to_num(nan=0.0).round().clamp(-128, 127)
    return codes.to(torch.int8), scale


def dequantize(q: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """q · scale. The operator rounds it to float32, then to its dtype."""
    return decode(q) * scale.double()
