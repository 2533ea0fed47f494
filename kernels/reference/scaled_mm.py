"""Products of FP8 codes with FP8 codes."""

from __future__ import annotations

import torch

from policyquant.kernels.reference.formats import decode


def scaled_mm(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """(a @ b.T) · scale_a · scale_b.T + bias. The operator rounds sums and products to float32, the result once."""
    return of_rows(decode(a) @ decode(b).T * scale_a.double(), scale_b, bias)


def of_rows(product: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The scale, [1] or [N, 1], and the bias of a weight's rows, applied to a product [M, N]."""
    scaled = product * scale.double().reshape(-1)
    return scaled if bias is None else scaled + bias.double()
