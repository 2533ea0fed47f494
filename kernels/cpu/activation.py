"""Gated activations, on a CPU: [..., 2N] holds gate, then up. Each step rounds to x.dtype, as transformers does."""

from __future__ import annotations

import torch


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """silu(gate) · up."""
    gate, up = x.chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up).contiguous()


def gelu_and_mul(x: torch.Tensor, approximate: str) -> torch.Tensor:
    """gelu(gate) · up."""
    gate, up = x.chunk(2, dim=-1)
    return (torch.nn.functional.gelu(gate, approximate=approximate) * up).contiguous()
