"""Products of int8 codes with int8 codes."""

from __future__ import annotations

import torch


def scaled_int8_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    zero_point: torch.Tensor | None = None,
    weight_sums: torch.Tensor | None = None,
) -> torch.Tensor:
    """((a - zero_point) @ b.T) · scale_a · scale_b.T + bias. The operator's sums are exact too; it rounds them once.

    `weight_sums` are the sums of b's rows, which an operator needs and this does not.
    """
    codes = a.long() if zero_point is None else a.long() - zero_point.long()
    product = (codes @ b.long().T).double() * scale_a.double() * scale_b.double().reshape(-1)
    return product if bias is None else product + bias.double()
