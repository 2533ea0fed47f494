"""Root mean square normalization, with the residual addition that precedes it."""

from __future__ import annotations

import torch

from policyquant.kernels.reference.activation import quantized


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


def rms_norm_quant(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    scale: torch.Tensor | None = None,
    *,
    group_size: int | None = None,
    column_major: bool = False,
    power_of_two: bool = False,
    scale_ub: float | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of the norm, rounded to x.dtype, times the weight, rounded to the dtype of both."""
    normal = rms_norm(x, torch.ones_like(weight), eps).to(x.dtype)
    y = (normal.double() * weight.double()).to(torch.promote_types(x.dtype, weight.dtype))
    return quantized(y, scale, group_size, column_major, power_of_two, scale_ub, dtype)


def fused_add_rms_norm_quant(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    scale: torch.Tensor | None = None,
    *,
    group_size: int | None = None,
    column_major: bool = False,
    power_of_two: bool = False,
    scale_ub: float | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same of x + residual, and that sum."""
    total = (x.double() + residual.double()).float().to(x.dtype)
    codes, of_codes = rms_norm_quant(
        total, weight, eps, scale, group_size=group_size, column_major=column_major, power_of_two=power_of_two,
        scale_ub=scale_ub, dtype=dtype,
    )  # fmt: skip
    return codes, of_codes, total
