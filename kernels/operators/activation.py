"""Gated activations: [..., 2N] = [gate | up] to [..., N]."""

from __future__ import annotations

from typing import Any

import torch

from policyquant.kernels.cpu import activation as plain
from policyquant.kernels.registration import define, like

_ops: Any = torch.ops.policyquant


def _half(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    return like(x, (*x.shape[:-1], x.shape[-1] // 2), x.dtype)


define("silu_and_mul", "Tensor x", {"out": "a"}, plain.silu_and_mul, _half)
define("gelu_and_mul", "Tensor x, str approximate", {"out": "a"}, plain.gelu_and_mul, _half)


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """silu(gate) · up of x = [gate | up], [..., 2N] to [..., N]."""
    result: torch.Tensor = _ops.silu_and_mul.default(x)
    return result


def gelu_and_mul(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """gelu(gate) · up of x = [gate | up], [..., 2N] to [..., N]."""
    result: torch.Tensor = _ops.gelu_and_mul.default(x, approximate)
    return result
