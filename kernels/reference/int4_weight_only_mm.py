"""Products of activations as they are with 4-bit weights."""

from __future__ import annotations

import torch

from policyquant.kernels.reference.int4_quantize import unpacked


def int4_weight_only_mm(
    x: torch.Tensor,
    packed: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor | None = None,
    group_size: int = 128,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """x @ ((code - zero point) · scale).T + bias. The operator rounds sums and products to float32, the result once."""
    columns = x.shape[1]
    zero = torch.full_like(scale, 8, dtype=torch.float64) if zero_point is None else zero_point.double()
    values = unpacked(packed, columns).double() - zero.repeat_interleave(group_size, -1)[:, :columns]
    product = x.double() @ (values * scale.double().repeat_interleave(group_size, -1)[:, :columns]).T
    return product if bias is None else product + bias.double()
