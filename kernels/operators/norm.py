"""Root mean square normalization, with the residual addition that precedes it."""

from __future__ import annotations

from typing import Any

import torch

from policyquant.kernels.cpu import norm as plain
from policyquant.kernels.registration import define, like

_ops: Any = torch.ops.policyquant

define(
    "rms_norm",
    "Tensor x, Tensor weight, float eps",
    {"out": "a"},
    plain.rms_norm,
    lambda x, weight, eps: like(x, tuple(x.shape), torch.promote_types(x.dtype, weight.dtype)),
)
define(
    "fused_add_rms_norm",
    "Tensor x, Tensor residual, Tensor weight, float eps",
    {"out": "a", "out_residual": "b"},
    plain.fused_add_rms_norm,
    lambda x, residual, weight, eps: (
        like(x, tuple(x.shape), torch.promote_types(x.dtype, weight.dtype)),
        like(x, tuple(x.shape), x.dtype),
    ),
)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x²) + eps) · weight over the last dimension."""
    result: torch.Tensor = _ops.rms_norm.default(x, weight, eps)
    return result


def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of x + residual, and that sum."""
    result: tuple[torch.Tensor, torch.Tensor] = _ops.fused_add_rms_norm.default(x, residual, weight, eps)
    return result
