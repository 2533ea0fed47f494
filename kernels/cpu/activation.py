"""Gated activations, on a CPU: [..., 2N] holds gate, then up. Each step rounds to x.dtype, as transformers does."""

from __future__ import annotations

from typing import Any, Final

import torch

from policyquant.kernels.cpu import group_quantize, quantize

ACTIVATIONS: Final = ("silu", "gelu", "gelu_tanh")


def half_shape(x: torch.Tensor) -> tuple[Any, ...]:
    """[..., N] of x [..., 2N].

    Raises:
        ValueError: the last dimension cannot be halved.
    """
    if x.ndim == 0 or x.shape[-1] % 2:
        raise ValueError(f"a gated activation takes gate and values side by side, [..., 2N]; found {list(x.shape)}")
    return (*x.shape[:-1], x.shape[-1] // 2)


def check_activation(activation: str) -> None:
    """Refuse what is none of `ACTIVATIONS`.

    Raises:
        ValueError: it is not.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"an activation is one of {', '.join(ACTIVATIONS)}; found {activation!r}")


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """silu(gate) · up."""
    half_shape(x)
    gate, up = x.chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up).contiguous()


def gelu_and_mul(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """gelu(gate) · up."""
    half_shape(x)
    gate, up = x.chunk(2, dim=-1)
    return (torch.nn.functional.gelu(gate, approximate=approximate) * up).contiguous()


def gated_activation_static_fp8_quant(
    x: torch.Tensor, scale: torch.Tensor, activation: str, dtype: torch.dtype
) -> torch.Tensor:
    """Codes under one scale [1] that is given."""
    return quantize.static_scaled_fp8_quant(gated(x, activation), scale, dtype)


def gated_activation_per_token_fp8_quant(
    x: torch.Tensor, activation: str, scale_ub: float | None, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and a scale for each row."""
    return quantize.per_token_scaled_fp8_quant(gated(x, activation), scale_ub, dtype)


def gated_activation_group_fp8_quant(
    x: torch.Tensor, activation: str, group_size: int, column_major: bool, power_of_two: bool, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and a scale for each group of a row."""
    return group_quantize.group_fp8_quant(gated(x, activation), group_size, column_major, power_of_two, dtype)


def gated(x: torch.Tensor, activation: str) -> torch.Tensor:
    """The activation of one of `ACTIVATIONS`, as it is."""
    check_activation(activation)
    if activation == "silu":
        return silu_and_mul(x)
    return gelu_and_mul(x, "tanh" if activation == "gelu_tanh" else "none")
