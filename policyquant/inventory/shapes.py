"""What a tensor's shape may be, whatever source tells it."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

from policyquant.inventory.dtypes import DTYPE_BITS

MOST_DIMENSIONS: Final = 64
"""PyTorch's own limit; a longer shape costs time and means nothing."""

_MOST_BITS: Final = 1 << 63
"""No file is as large. Sums and ratios of what is below it stay within what a float can hold."""


def shape_fault(shape: Sequence[int], dtype: str | None) -> str | None:
    """What is wrong with a shape of integers that are not negative; None if nothing is.

    Args:
        shape: The sizes.
        dtype: As safetensors spells it; None: unknown, and counted as one byte.
    """
    if len(shape) > MOST_DIMENSIONS:
        return f"more than {MOST_DIMENSIONS} dimensions"
    # A size of 0 must not hide the others, which are multiplied without it where a layer is stored in blocks.
    if prod([size or 1 for size in shape]) * (8 if dtype is None else DTYPE_BITS[dtype]) >= _MOST_BITS:
        return "a shape larger than any file"
    return None
