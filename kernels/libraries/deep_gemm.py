"""DeepGEMM (github.com/deepseek-ai/DeepGEMM), which compiles its kernels when they are first called."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

import torch

from policyquant.kernels.dispatch import Implementation
from policyquant.kernels.libraries.operands import not_as_libraries_read
from policyquant.kernels.machine import Machine


def block_scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None,
    scale_result: torch.Tensor | None,
    *,
    out: torch.Tensor,
) -> None:
    """As the operator `block_scaled_mm`; DeepGEMM lays the scales of a out anew if they are not as it reads them."""
    library: Any = import_module("deep_gemm")
    library.fp8_gemm_nt((a, scale_a), (b, scale_b), out)


def _refuses(
    on: Machine,
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None,
    scale_result: torch.Tensor | None,
    *,
    out: torch.Tensor,
) -> str | None:
    rows, (channels, terms) = a.shape[0], b.shape
    if rows == 0:
        return "there is nothing to multiply"
    if channels % 64 or terms == 0 or terms % 128:
        return f"it is given N in multiples of 64 and K in multiples of 128, found N = {channels}, K = {terms}"
    if a.dtype != torch.float8_e4m3fn or b.dtype != torch.float8_e4m3fn or out.dtype != torch.bfloat16:
        return f"it makes bfloat16 of float8_e4m3fn, found {out.dtype} of {a.dtype} and {b.dtype}"
    return "it adds no bias" if bias is not None else not_as_libraries_read(a, b, scale_b)


BY_BLOCKS: Final = Implementation(
    "deep_gemm", f"{__name__}:block_scaled_mm", "deep_gemm", capability=(9, 0), below=(9, 1), refuses=_refuses
)
"""On 10.0 it wants scales that are powers of two, and would round ours."""
