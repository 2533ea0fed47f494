"""FlashInfer (github.com/flashinfer-ai/flashinfer): CUTLASS kernels for compute capability 10.0."""

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
    """As the operator `block_scaled_mm`, with scales [M, K / 128] and [N / 128, K / 128]."""
    library: Any = import_module("flashinfer.gemm")
    library.gemm_fp8_nt_groupwise(
        a, b, scale_a.contiguous(), scale_b, scale_major_mode="K", out=out, out_dtype=out.dtype, backend="cutlass"
    )


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
    if rows == 0 or rows % 4:
        return f"it is given rows in multiples of 4, found {rows}"
    if channels % 128 or terms == 0 or terms % 128:
        return f"it is given N and K in multiples of 128, found N = {channels}, K = {terms}"
    if a.dtype != torch.float8_e4m3fn or b.dtype != torch.float8_e4m3fn:
        return f"it is given float8_e4m3fn, found {a.dtype} and {b.dtype}"
    if out.dtype not in (torch.bfloat16, torch.float16):
        return f"it makes bfloat16 or float16, found {out.dtype}"
    return "it adds no bias" if bias is not None else not_as_libraries_read(a, b, scale_b)


BY_BLOCKS: Final = Implementation(
    "flashinfer", f"{__name__}:block_scaled_mm", "flashinfer", capability=(10, 0), below=(11, 0), refuses=_refuses
)
