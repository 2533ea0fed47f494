"""Tensors of any number of dimensions as rows, which is what kernels go through."""

from __future__ import annotations

import math

import torch


def as_rows(x: torch.Tensor) -> torch.Tensor:
    """[..., N] as [M, N]: a view where one stride leads from row to row, else a copy."""
    if x.ndim == 2:
        return x
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def width_class(n: int, smallest: int, largest: int) -> int:
    """The power of two that holds n columns, within bounds; a row wider than the largest takes several steps."""
    return min(max(1 << max(n - 1, 0).bit_length(), smallest), largest)
