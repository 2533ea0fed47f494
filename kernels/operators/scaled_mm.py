"""Products of FP8 codes with FP8 codes."""

from __future__ import annotations

from typing import Any

import torch

from policyquant.kernels.cpu import scaled_mm as plain
from policyquant.kernels.registration import define, like

_ops: Any = torch.ops.policyquant

define(
    "scaled_mm",
    "Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor? bias, ScalarType out_dtype",
    {"out": "a"},
    plain.scaled_mm,
    lambda a, b, scale_a, scale_b, bias, out_dtype: like(a, (a.shape[0], b.shape[0]), out_dtype),
    "out_dtype",
)


def scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """(a @ b.T) · scale_a · scale_b.T + bias, [M, N], of fp8 a [M, K] and b [N, K]; float32 sums, rounded once."""
    result: torch.Tensor = _ops.scaled_mm.default(a, b, scale_a, scale_b, bias, out_dtype)
    return result
