"""`torch._scaled_grouped_mm`: CUTLASS, for compute capability 9.0, with one scale a row of each operand.

What it takes, for torch 2.9 to 2.13: aten/src/ATen/native/cuda/GroupedBlas.cpp, ScaledGroupMM.cu, GroupMMCommon.cuh
and GroupedMMUtils.h. It lets 10.0 through too and fails there (pytorch/pytorch#187095).

- Offsets stay on the GPU, and an expert may have any number of rows, also none; torch's own tests have multiples of 16.
- Rows behind the last offset are left as they are, and there is no overload that writes into a given tensor. So the
  result is copied, with zeros for those rows, which costs reading and writing it once more.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from policyquant.kernels.cpu.grouped_mm import of_blocks
from policyquant.kernels.dispatch import Implementation
from policyquant.kernels.machine import Machine

_E4M3: Final = torch.float8_e4m3fn
_MOST_EXPERTS: Final = 1023
_scaled_grouped_mm: Any = getattr(torch.ops.aten, "_scaled_grouped_mm", None)


def grouped_scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    offsets: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    out: torch.Tensor,
) -> None:
    """As the operator `grouped_scaled_mm`. Sums are taken out of the tensor cores every 128 columns."""
    (rows, _), (experts, channels, _) = a.shape, b.shape
    # torch reads rows up to the offsets that it is given, whatever they are.
    ends = offsets.clamp(0, rows).cummax(0).values
    of_rows = scale_a.reshape(-1).expand(rows).contiguous()
    of_channels = scale_b.reshape(experts, -1).expand(experts, channels).contiguous()
    result = _scaled_grouped_mm(a, b.transpose(1, 2), of_rows, of_channels, ends, None, None, out.dtype, False)
    behind = torch.arange(rows, device=a.device)[:, None] >= ends[-1]
    torch.where(behind, torch.zeros((), dtype=out.dtype, device=a.device), result, out=out)


def _refuses(
    on: Machine,
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    offsets: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    out: torch.Tensor,
) -> str | None:
    (rows, terms), (experts, channels, _) = a.shape, b.shape
    if _scaled_grouped_mm is None:
        return "this torch does not have it"
    if rows == 0 or channels == 0 or terms == 0 or experts == 0:
        return "there is nothing to multiply"
    if experts > _MOST_EXPERTS:
        return f"it takes at most {_MOST_EXPERTS} experts, found {experts}"
    if terms % 16 or channels % 16:
        return f"it needs multiples of 16, found K = {terms}, N = {channels}"
    if not (_aligned(a) and _aligned(b)):
        return "it needs rows that are contiguous and start at multiples of 16 bytes"
    if a.dtype != _E4M3 or b.dtype != _E4M3 or out.dtype != torch.bfloat16:
        return f"it makes bfloat16 of float8_e4m3fn, found {out.dtype} of {a.dtype} and {b.dtype}"
    if of_blocks(scale_b, b):
        return "it takes one scale for each row of both operands, not for blocks"
    return "it adds no bias" if bias is not None else None


def _aligned(x: torch.Tensor) -> bool:
    """Whether rows, and in three dimensions matrices too, can be loaded 16 bytes at once."""
    *outer, last = x.stride()
    every = (*outer, x.storage_offset())
    return last == 1 and outer[-1] >= x.shape[-1] and not any(step % 16 for step in every)


BY_ROWS: Final = Implementation(
    "torch_scaled_grouped_mm", f"{__name__}:grouped_scaled_mm", capability=(9, 0), below=(9, 1), refuses=_refuses
)
