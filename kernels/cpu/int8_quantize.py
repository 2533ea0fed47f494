"""Encoding of activations to int8, in plain torch."""

from __future__ import annotations

from typing import Final

import torch

from policyquant.kernels.cpu.quantize import SMALLEST_SCALE, largest_finite

LARGEST_CODE: Final = 127.0
"""The divisor of vLLM's kernels: 127 on either side of zero, so that no element errs by more than half a step."""

STEPS: Final = 255.0
"""From the smallest code to the largest."""


def per_token_int8_quant(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and a scale for each row of the last dimension; NaN is the scale of a row that holds NaN."""
    largest = largest_finite(x)
    scale = (largest / torch.full_like(largest, LARGEST_CODE)).clamp_(min=SMALLEST_SCALE)
    scale.masked_fill_(_holds_nan(x), torch.nan)
    return static_scaled_int8_quant(x, scale, None), scale


def asymmetric_per_token_int8_quant(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes, a scale and a zero point for each row of the last dimension."""
    low, high = extremes(x)
    width = (high - low).clamp_(max=torch.finfo(torch.float32).max)
    scale = (width / torch.full_like(width, STEPS)).clamp_(min=SMALLEST_SCALE)
    zero_point = (-128.0 - low / scale).round_().clamp_(-128, 127).int()
    nan = _holds_nan(x)
    scale.masked_fill_(nan, torch.nan)
    zero_point.masked_fill_(nan, 0)
    return static_scaled_int8_quant(x, scale, zero_point), scale, zero_point


def static_scaled_int8_quant(x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None) -> torch.Tensor:
    """Codes of x / scale; scales below 2**-126 count as that, and NaN as zero."""
    nearest = x.to(torch.float32, copy=True).div_(scale.clamp(min=SMALLEST_SCALE)).nan_to_num_(nan=0.0).round_()
    if zero_point is not None:
        # A sum with what is far beyond the codes need not be exact.
        nearest.clamp_(-1024, 1024).add_(zero_point)
    return nearest.clamp_(-128, 127).to(torch.int8, memory_format=torch.contiguous_format)


def check_static(x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None) -> None:
    """Refuse what is not one scale and one zero point.

    Raises:
        ValueError: a shape or a dtype is another.
    """
    if scale.numel() != 1 or scale.dtype != torch.float32:
        found = f"{list(scale.shape)} {scale.dtype}"
        raise ValueError(f"static_scaled_int8_quant: the scale is {found}, expected one float32")
    if zero_point is not None and (zero_point.numel() != 1 or zero_point.dtype != torch.int32):
        found = f"{list(zero_point.shape)} {zero_point.dtype}"
        raise ValueError(f"static_scaled_int8_quant: the zero point is {found}, expected one int32")


def checked_static_scaled_int8_quant(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None
) -> torch.Tensor:
    """The operator: one scale and one zero point."""
    check_static(x, scale, zero_point)
    one = None if zero_point is None else zero_point.reshape(())
    return static_scaled_int8_quant(x, scale.reshape(()), one)


def extremes(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest and the largest finite element of each row, in float32, zero among them."""
    if x.shape[-1] == 0:
        nothing = torch.zeros((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
        return nothing, nothing
    finite = torch.where(x.isfinite(), x, 0).float()
    low, high = finite.aminmax(dim=-1, keepdim=True)
    return low.clamp_(max=0.0), high.clamp_(min=0.0)


def _holds_nan(x: torch.Tensor) -> torch.Tensor:
    return x.isnan().any(-1, keepdim=True)
