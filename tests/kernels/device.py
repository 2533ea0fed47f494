"""Where kernels are tested, and how one implementation is asked for."""

from __future__ import annotations

from typing import Final

import torch

DEVICE: Final = "cuda" if torch.cuda.is_available() else "cpu"
"""On a CPU, Triton's kernels are interpreted."""
