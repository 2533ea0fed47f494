"""Products of activations as they are with 8-bit weights."""

from __future__ import annotations

import torch

from policyquant.kernels.reference.formats import decode

BLOCK = 128
"""Rows and columns of a weight that share a scale, where scales belong to blocks."""


def fp8_weight_only_mm(
    x: torch.Tensor, q: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """x @ (q · scale).T + bias. The operator rounds sums and products to float32, the result once.

    The scale is [1], [N, 1], or [ceil(N / 128), ceil(K / 128)] for blocks, whose sums are scaled before they are added.
    """
    rows, columns = q.shape
    wide = scale.double()
    if scale.numel() > 1 and tuple(scale.shape) != (rows, 1):
        wide = wide.repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :columns]
    product = decode(x) @ (decode(q) * wide).T
    return product if bias is None else product + bias.double()


def int8_weight_only_mm(
    x: torch.Tensor, q: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """The same of integers."""
    return fp8_weight_only_mm(x, q, scale, bias)


def weight_only_mm(
    x: torch.Tensor, q: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Either, by the dtype of q."""
    return fp8_weight_only_mm(x, q, scale, bias)
