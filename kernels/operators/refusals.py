"""What speaks against a kernel whatever its family: reasons for `Implementation.refuses`; None: nothing does."""

from __future__ import annotations

from typing import Any, Final

import torch

FLOATS: Final = (torch.float32, torch.float16, torch.bfloat16)


def other_than_floats(*values: Any) -> str | None:
    """A tensor among these that is not in a plain float dtype."""
    for value in values:
        if isinstance(value, torch.Tensor) and value.dtype not in FLOATS:
            return f"it takes float32, float16 and bfloat16, found {value.dtype}"
    return None


def other_than_one_scale(scale: torch.Tensor) -> str | None:
    """A scale that plain torch would broadcast."""
    if scale.numel() != 1 or scale.dtype != torch.float32:
        return f"it takes one float32 scale, found {list(scale.shape)} {scale.dtype}"
    return None


def more_dimensions(*tensors: torch.Tensor) -> str | None:
    """Leading dimensions that need not fold into two, which is what the CUDA kernels go through."""
    for x in tensors:
        if x.ndim > 3 and not x.is_contiguous():
            return f"it takes at most 3 dimensions that are not contiguous, found {list(x.shape)}"
    return None
