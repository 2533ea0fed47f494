"""RMS norm, on a CPU, with the arithmetic of transformers' LlamaRMSNorm."""

from __future__ import annotations

import torch

from policyquant.kernels.cpu import group_quantize, quantize


def check_weight(x: torch.Tensor, weight: torch.Tensor) -> None:
    """Refuse a weight that has not one factor for each column.

    Raises:
        ValueError: it has not.
    """
    if weight.shape != x.shape[-1:]:
        raise ValueError(f"a norm of x {list(x.shape)} takes a weight {list(x.shape[-1:])}; found {list(weight.shape)}")


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / rms(x) in float32, rounded to x.dtype, then times the weight."""
    check_weight(x, weight)
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (weight * wide.to(x.dtype)).contiguous()


def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of x + residual, and that sum."""
    total = (x + residual).to(x.dtype).contiguous()
    return rms_norm(total, weight, eps), total


def rms_norm_static_fp8_quant(
    x: torch.Tensor, weight: torch.Tensor, eps: float, scale: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Codes of the norm under one scale [1] that is given."""
    return quantize.static_scaled_fp8_quant(rms_norm(x, weight, eps), scale, dtype)


def fused_add_rms_norm_static_fp8_quant(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    scale: torch.Tensor,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same of x + residual, and that sum."""
    y, total = fused_add_rms_norm(x, residual, weight, eps)
    return quantize.static_scaled_fp8_quant(y, scale, dtype), total


def rms_norm_per_token_fp8_quant(
    x: torch.Tensor, weight: torch.Tensor, eps: float, scale_ub: float | None, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of the norm and a scale for each row."""
    return quantize.per_token_scaled_fp8_quant(rms_norm(x, weight, eps), scale_ub, dtype)


def fused_add_rms_norm_per_token_fp8_quant(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    scale_ub: float | None,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same of x + residual, and that sum."""
    y, total = fused_add_rms_norm(x, residual, weight, eps)
    return (*quantize.per_token_scaled_fp8_quant(y, scale_ub, dtype), total)


def rms_norm_group_fp8_quant(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    group_size: int,
    column_major: bool,
    power_of_two: bool,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of the norm and a scale for each group of a row."""
    y = rms_norm(x, weight, eps)
    return group_quantize.group_fp8_quant(y, group_size, column_major, power_of_two, dtype)


def fused_add_rms_norm_group_fp8_quant(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    group_size: int,
    column_major: bool,
    power_of_two: bool,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same of x + residual, and that sum."""
    y, total = fused_add_rms_norm(x, residual, weight, eps)
    return (*group_quantize.group_fp8_quant(y, group_size, column_major, power_of_two, dtype), total)
