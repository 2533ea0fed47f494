"""Products of FP8 codes with FP8 weights of several experts, each with the rows that are its own."""

from __future__ import annotations

from typing import Any

import torch

from policyquant.kernels import dispatch
from policyquant.kernels.cpu import grouped_mm as plain
from policyquant.kernels.libraries import torch_scaled_grouped_mm
from policyquant.kernels.registration import define, like

_ops: Any = torch.ops.policyquant

define(
    "grouped_scaled_mm",
    "Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor offsets, Tensor? bias, ScalarType out_dtype",
    {"out": "a"},
    plain.grouped_scaled_mm,
    lambda a, b, scale_a, scale_b, offsets, bias, out_dtype: like(a, (a.shape[0], b.shape[1]), out_dtype),
    "out_dtype",
    implementations=(dispatch.triton("grouped_mm", "grouped_scaled_mm"), torch_scaled_grouped_mm.BY_ROWS),
)


def grouped_scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    offsets: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """a @ b[e].T with scales and bias of e, for each expert's rows of a; float32 sums, rounded once.

    Args:
        a: FP8 codes [T, K], sorted by expert.
        b: FP8 codes [E, N, K].
        scale_a: float32 [1] or [T, 1]; [T, ⌈K / 128⌉], one for 128 columns, where those of b belong to blocks.
        scale_b: float32 [E] or [E, 1]; [E, N, 1]; or [E, ⌈N / 128⌉, ⌈K / 128⌉], one for a block of 128 × 128.
        offsets: int32 [E], where each expert's rows end. Nothing waits for them; rows behind the last are zeros.
        bias: [E, N].

    Returns:
        [T, N] in `out_dtype`.

    Raises:
        ValueError: the scales of a belong to groups and those of b do not.
    """
    if scale_a.ndim == 2 and scale_a.shape[1] > 1 and not plain.of_blocks(scale_b, b):
        raise ValueError(
            f"scale_a {list(scale_a.shape)} of groups goes with scale_b of blocks; found {list(scale_b.shape)}"
        )
    result: torch.Tensor = _ops.grouped_scaled_mm.default(a, b, scale_a, scale_b, offsets, bias, out_dtype)
    return result
