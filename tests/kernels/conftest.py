"""Kernels run on the GPU where there is one, else in Triton's interpreter, made strict."""

from __future__ import annotations

import torch

if not torch.cuda.is_available():
    from tests.kernels.interpreter import make_strict

    make_strict()
