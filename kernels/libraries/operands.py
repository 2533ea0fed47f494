"""What libraries of block-scaled products ask of operands alike."""

from __future__ import annotations

import torch


def not_as_libraries_read(a: torch.Tensor, b: torch.Tensor, scale_b: torch.Tensor) -> str | None:
    """Operands that are views, or that do not start where 16 bytes can be loaded at once; None: they are fine."""
    if not (a.is_contiguous() and b.is_contiguous() and scale_b.is_contiguous()):
        return "it needs contiguous operands"
    if a.storage_offset() % 16 or b.storage_offset() % 16:
        return "it needs operands that start at a multiple of 16 bytes"
    return None
