"""Gated activations: [..., 2N] = [gate | up] to [..., N]."""

from __future__ import annotations

import math

import torch


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """gate / (1 + exp(-gate)) · up of x = [gate | up]. The operator rounds silu(gate) to x.dtype, then the product."""
    gate, up = x.double().chunk(2, dim=-1)
    return gate / (1 + torch.exp(-gate)) * up


def gelu_and_mul(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """gelu(gate) · up of x = [gate | up], exact or by tanh (Hendrycks and Gimpel 2016, arXiv:1606.08415).

    The operator rounds gelu(gate) to x.dtype, then the product.
    """
    gate, up = x.double().chunk(2, dim=-1)
    if approximate == "tanh":
        share = (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3))) / 2
    else:
        share = (1 + torch.erf(gate / math.sqrt(2))) / 2
    return gate * share * up
