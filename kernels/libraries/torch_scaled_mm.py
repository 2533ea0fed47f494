"""`torch._scaled_mm`: cuBLASLt for one scale a tensor and for blocks, CUTLASS for one a row. It sums in float32.

Where torch takes what, for 2.11 and 2.13: aten/src/ATen/native/cuda/ScaledBlas.cpp.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from policyquant.kernels.dispatch import Implementation
from policyquant.kernels.machine import Machine

_E4M3: Final = torch.float8_e4m3fn
_E5M2: Final = torch.float8_e5m2
_scaled_mm: Any = torch.ops.aten._scaled_mm.out


def scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None,
    scale_result: torch.Tensor | None,
    *,
    out: torch.Tensor,
) -> None:
    """As the operator `scaled_mm`."""
    if scale_b.numel() == 1:
        scale_a, scale_b = scale_a.reshape(()), scale_b.reshape(())
    _scaled_mm(a, b.t(), scale_a.contiguous(), scale_b.t().contiguous(), bias, None, out.dtype, False, out=out)


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
    """As the operator `block_scaled_mm`. Scales of a are read down columns, those of b along rows."""
    scale_a, scale_b = scale_a.t().contiguous().t(), scale_b.contiguous().t()
    _scaled_mm(a, b.t(), scale_a, scale_b, bias, None, out.dtype, False, out=out)


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
    """What both kinds of scales have in common."""
    rows, (channels, terms) = a.shape[0], b.shape
    if rows == 0 or channels == 0 or terms == 0:
        return "there is nothing to multiply"
    if terms % 16 or channels % 16:
        return f"it needs multiples of 16, found K = {terms}, N = {channels}"
    if not (_aligned(a) and _aligned(b)):
        return "it needs rows that are contiguous and start at multiples of 16 bytes"
    if _E4M3 not in (a.dtype, b.dtype) or not {a.dtype, b.dtype} <= {_E4M3, _E5M2}:
        return f"it does not multiply {a.dtype} with {b.dtype}"
    if scale_result is not None or out.dtype in (_E4M3, _E5M2):
        return "what it does with the scale of an FP8 result differs between versions (pytorch/pytorch#190449)"
    if bias is not None and not (bias.dtype == out.dtype and bias.is_contiguous() and bias.element_size() == 2):
        return f"it adds a bias of 16 bits in the dtype of the result, found {bias.dtype} for {out.dtype}"
    return None


def _refuses_rows(
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
    by_row = scale_a.numel() > 1, scale_b.numel() > 1
    if a.shape[0] > 1 and b.shape[0] > 1 and by_row[0] != by_row[1]:
        return "it takes one scale for both operands, or one for each row of both"
    if any(by_row):
        if on.capability is not None and on.capability >= (12, 0):
            return "it has no scales of rows for compute capability 12.0"
        if out.dtype != torch.bfloat16 or a.dtype != _E4M3 or b.dtype != _E4M3:
            return f"with scales of rows it makes bfloat16 of float8_e4m3fn, found {out.dtype} of {a.dtype}, {b.dtype}"
    return _refuses(on, a, b, scale_a, scale_b, bias, scale_result, out=out)


def _refuses_blocks(
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
    if a.shape[0] % 4:
        return f"with scales of blocks it needs a multiple of 4 rows, found {a.shape[0]}"
    if a.shape[1] % 512:
        # 2.13 wants rows of the weight's scales padded to a multiple of 4, 2.11 does not.
        return f"with scales of blocks it is given multiples of 512, found K = {a.shape[1]}"
    if out.dtype != torch.bfloat16 or bias is not None or a.dtype != _E4M3 or b.dtype != _E4M3:
        return "with scales of blocks it makes bfloat16 of float8_e4m3fn, without a bias"
    return _refuses(on, a, b, scale_a, scale_b, bias, scale_result, out=out)


def _aligned(x: torch.Tensor) -> bool:
    by_row = x.shape[0] == 1 or x.stride(0) % 16 == 0
    return x.stride(1) == 1 and by_row and x.stride(0) >= x.shape[1] and x.storage_offset() % 16 == 0


BY_ROWS: Final = Implementation(
    "torch_scaled_mm", f"{__name__}:scaled_mm", capability=(8, 9), below=(13, 0), refuses=_refuses_rows
)
BY_BLOCKS: Final = Implementation(
    "torch_scaled_mm", f"{__name__}:block_scaled_mm", capability=(9, 0), below=(9, 1), refuses=_refuses_blocks
)
"""cuBLASLt has scales of blocks for compute capability 9.0 only."""
