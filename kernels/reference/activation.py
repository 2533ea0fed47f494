"""Gated activations: [..., 2N] = [gate | up] to [..., N]."""

from __future__ import annotations

import math

import torch

from policyquant.kernels.reference.group_quantize import group_fp8_quant
from policyquant.kernels.reference.quantize import per_token_scaled_fp8_quant, static_scaled_fp8_quant


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """gate / (1 + exp(-gate)) · up of x = [gate | up]. The operator rounds silu(gate) to x.dtype, then the product."""
    gate, up = x.double().chunk(2, dim=-1)
    return _activated(gate, "silu") * up


def gelu_and_mul(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """gelu(gate) · up of x = [gate | up], exact or by tanh (Hendrycks and Gimpel 2016, arXiv:1606.08415).

    The operator rounds gelu(gate) to x.dtype, then the product.
    """
    gate, up = x.double().chunk(2, dim=-1)
    return _activated(gate, "gelu_tanh" if approximate == "tanh" else "gelu") * up


def _activated(gate: torch.Tensor, activation: str) -> torch.Tensor:
    """silu, gelu or gelu_tanh of a float64 gate."""
    if activation == "silu":
        return gate / (1 + torch.exp(-gate))
    if activation == "gelu_tanh":
        share = (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))) / 2
    else:
        share = (1 + torch.erf(gate / math.sqrt(2))) / 2
    return gate * share


def gated(x: torch.Tensor, activation: str) -> torch.Tensor:
    """activation(gate) · up of x = [gate | up], with both roundings to x.dtype; activation: silu, gelu, gelu_tanh."""
    gate, up = x.chunk(2, dim=-1)
    activated = _activated(gate.double(), activation).to(x.dtype)
    return (activated.double() * up.double()).to(x.dtype)


def gated_activation_static_fp8_quant(
    x: torch.Tensor, scale: torch.Tensor, activation: str = "silu", dtype: torch.dtype = torch.float8_e4m3fn
) -> torch.Tensor:
    """Codes under a scale that is given."""
    return static_scaled_fp8_quant(gated(x, activation), scale, dtype)


def gated_activation_per_token_fp8_quant(
    x: torch.Tensor,
    activation: str = "silu",
    scale_ub: float | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and a scale for each row."""
    return per_token_scaled_fp8_quant(gated(x, activation), scale_ub, dtype)


def gated_activation_group_fp8_quant(
    x: torch.Tensor,
    activation: str = "silu",
    group_size: int = 128,
    column_major: bool = False,
    power_of_two: bool = False,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and a scale for each group of a row."""
    return group_fp8_quant(gated(x, activation), group_size, column_major, power_of_two, dtype)


def silu_and_mul_quant(
    x: torch.Tensor,
    scale: torch.Tensor | None = None,
    *,
    group_size: int | None = None,
    column_major: bool = False,
    power_of_two: bool = False,
    scale_ub: float | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of silu(gate) · up."""
    return quantized(gated(x, "silu"), scale, group_size, column_major, power_of_two, scale_ub, dtype)


def gelu_and_mul_quant(
    x: torch.Tensor,
    scale: torch.Tensor | None = None,
    *,
    approximate: str = "none",
    group_size: int | None = None,
    column_major: bool = False,
    power_of_two: bool = False,
    scale_ub: float | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of gelu(gate) · up."""
    y = gated(x, "gelu_tanh" if approximate == "tanh" else "gelu")
    return quantized(y, scale, group_size, column_major, power_of_two, scale_ub, dtype)


def quantized(
    y: torch.Tensor,
    scale: torch.Tensor | None,
    group_size: int | None,
    column_major: bool,
    power_of_two: bool,
    scale_ub: float | None,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales as the arguments of a fused operator ask for them."""
    if scale is not None:
        return static_scaled_fp8_quant(y, scale, dtype), scale
    if group_size is not None:
        return group_fp8_quant(y, group_size, column_major, power_of_two, dtype)
    return per_token_scaled_fp8_quant(y, scale_ub, dtype)
