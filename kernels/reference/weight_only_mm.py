"""Products of activations as they are with 8-bit weights."""

from __future__ import annotations

import torch

from policyquant.kernels.reference.formats import decode
from policyquant.kernels.reference.scaled_mm import of_rows


def int8_weight_only_mm(
    x: torch.Tensor, q: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """(x @ q.T) · scale.T + bias. The operator rounds sums and products to float32, the result once."""
    return of_rows(decode(x) @ decode(q).T, scale, bias)
