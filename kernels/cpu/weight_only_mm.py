"""Products with 8-bit weights and activations as they are, on a CPU; sums are float32."""

from __future__ import annotations

import torch

from policyquant.kernels.cpu.scaled_mm import finish, tiled


def int8_weight_only_mm(
    x: torch.Tensor, q: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None, out_dtype: torch.dtype
) -> torch.Tensor:
    """(x @ q.T) · scale.T + bias, rounded once to `out_dtype`."""
    return finish(tiled(x.float(), q, torch.Tensor.float), scale, bias, out_dtype)
