"""Time on a GPU, as `policyquant kernels tune` takes it: graphs replayed, inputs rotated past the L2 cache, medians.

Without a GPU (a rehearsal) each call is made once, and its time means nothing.
"""

from __future__ import annotations

from typing import Final

import torch

from policyquant.kernels.tuning import clock
from policyquant.kernels.tuning.clock import seconds_of

__all__ = ["copy_bandwidth", "seconds_of", "sets_needed"]

L2_CACHE: Final = 60 * 1024 * 1024
"""Bytes, of an H200."""


def sets_needed(bytes_of_one: int) -> int:
    """How many sets of inputs together do not fit into the L2 cache."""
    return clock.sets_needed(bytes_of_one, L2_CACHE)


def copy_bandwidth(device: str, size: int = 512 * 1024 * 1024) -> float:
    """Bytes read and written a second by copies within the device's memory."""
    size = size if device == "cuda" else 4096
    pairs = [[torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2)] for _ in range(2)]
    return 2 * size / seconds_of(lambda pair: pair[1].copy_(pair[0]), pairs, device)
