"""Products of activations as they are with 8-bit weights."""

from __future__ import annotations

from typing import Any

import torch

from policyquant.kernels.cpu import weight_only_mm as plain
from policyquant.kernels.registration import define, like

_ops: Any = torch.ops.policyquant

define(
    "int8_weight_only_mm",
    "Tensor x, Tensor q, Tensor scale, Tensor? bias, ScalarType out_dtype",
    {"out": "a"},
    plain.int8_weight_only_mm,
    lambda x, q, scale, bias, out_dtype: like(x, (x.shape[0], q.shape[0]), out_dtype),
    "out_dtype",
)


def int8_weight_only_mm(
    x: torch.Tensor,
    q: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """(x @ q.T) · scale.T + bias, [M, N], of x [M, K] and int8 codes q [N, K]; float32 sums, rounded once."""
    result: torch.Tensor = _ops.int8_weight_only_mm.default(
        x, q, scale, bias, x.dtype if out_dtype is None else out_dtype
    )
    return result
