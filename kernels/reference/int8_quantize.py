"""Encoding of activations to int8, with one scale for a tensor or for each token, and a zero point if asked for."""

from __future__ import annotations

import torch

from policyquant.kernels.reference.formats import SMALLEST_SCALE, quotient, scales

LARGEST_FLOAT = torch.finfo(torch.float32).max


def per_token_int8_quant(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of x and a scale [..., 1] for each row: largest finite magnitude / 127; NaN if the row holds NaN."""
    scale = torch.where(_holds_nan(x), torch.nan, scales(x, 127.0))
    return static_scaled_int8_quant(x, scale), scale


def asymmetric_per_token_int8_quant(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes of x, a scale [..., 1] and a zero point [..., 1] int32 for each row; x ≈ (q - zero point) · scale.

    From the smallest to the largest finite element, zero among them, there are 255 steps; their width is rounded to
    float32 twice, as a difference, which is at most the largest float32, and as a quotient. The zero point is the code
    of zero, -128 - smallest / scale, of which the quotient and the difference are rounded to float32.
    """
    # A zero beside each row: it is among the values, and the smallest of nothing.
    finite = torch.cat((torch.where(x.isfinite(), x, 0).double(), x.new_zeros(*x.shape[:-1], 1).double()), dim=-1)
    low, high = finite.amin(-1, keepdim=True), finite.amax(-1, keepdim=True)
    width = (high - low).float().clamp(max=LARGEST_FLOAT)
    scale = (width.double() / 255).float().clamp(min=SMALLEST_SCALE)
    zero_point = (-128 - quotient(low, scale)).float().round().clamp(-128, 127).int()
    nan = _holds_nan(x)
    scale, zero_point = torch.where(nan, torch.nan, scale), torch.where(nan, 0, zero_point)
    return static_scaled_int8_quant(x, scale, zero_point), scale, zero_point


def static_scaled_int8_quant(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None = None
) -> torch.Tensor:
    """Codes in [-128, 127]: x / scale to the nearest integer, ties to even, plus the zero point.

    A scale below 2**-126 is taken for 2**-126. NaN counts as zero.
    """
    nearest = quotient(x, scale.clamp(min=SMALLEST_SCALE)).nan_to_num(nan=0.0).round()
    return (nearest if zero_point is None else nearest + zero_point).clamp(-128, 127).to(torch.int8)


def _holds_nan(x: torch.Tensor) -> torch.Tensor:
    return x.isnan().any(-1, keepdim=True)
