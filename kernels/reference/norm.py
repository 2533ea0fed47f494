"""Root mean square normalization, with the residual addition that precedes it."""

from __future__ import annotations

import torch


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
