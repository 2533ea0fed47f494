"""What the operators compute, written to be read: float64 where it matters, and no thought for speed."""

from __future__ import annotations

import torch


def fp8_values(dtype: torch.dtype) -> torch.Tensor:
    """The finite values that are not negative, ascending (float64); a value's position is its code."""
    values = torch.arange(128, dtype=torch.uint8).view(dtype).double()
    return values[values.isfinite()]


def encode_fp8(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The nearest value's code, ties to the even code, saturating; as float64 values. NaN stays NaN."""
    values = fp8_values(dtype)
    magnitude = x.double().abs().clamp(max=float(values[-1]))
    above = torch.searchsorted(values, magnitude.nan_to_num(0.0)).clamp(min=1)
    below = above - 1
    middle = (values[below] + values[above]) / 2
    upward = (magnitude > middle) | ((magnitude == middle) & (above % 2 == 0))
    nearest = torch.where(upward, values[above], values[below]).copysign(x.double())
    return torch.where(x.isnan(), torch.nan, nearest)


def scale_of(row: torch.Tensor, largest: float) -> float:
    """The largest finite magnitude / `largest`, in float32; the smallest normal float32 at least."""
    finite = row.float()[row.float().isfinite()].abs()
    amax = finite.max() if finite.numel() else torch.tensor(0.0)
    return max(float(amax / largest), torch.finfo(torch.float32).tiny)


def scaled_mm(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """(a @ b.T) · scale_a · scale_b.T + bias in float64."""
    product = (a.double() @ b.double().T) * scale_a.double() * scale_b.double().reshape(-1)
    return product if bias is None else product + bias.double()
