"""Layers that are asked to run as Triton's kernels do so in the interpreter that tests of kernels have, made strict."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("torch") is not None and find_spec("triton") is not None:
    import torch

    if not torch.cuda.is_available():
        from tests.kernels.interpreter import make_strict

        make_strict()
