"""Kernels run on the GPU where there is one; else Triton's in its interpreter, made strict, and CUDA's on the CPU."""

from __future__ import annotations

import torch

if not torch.cuda.is_available():
    from policyquant.kernels.cuda import library
    from tests.kernels.cuda_on_cpu.library import built
    from tests.kernels.interpreter import make_strict

    make_strict()
    library.use_on_cpu(built())
