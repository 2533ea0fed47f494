"""Products of activations as they are with 4-bit weights."""

from __future__ import annotations

from typing import Any

import torch

from policyquant.kernels import dispatch
from policyquant.kernels.cpu import int4_weight_only_mm as plain
from policyquant.kernels.operators.refusals import other_than_floats
from policyquant.kernels.registration import define, like

_ops: Any = torch.ops.policyquant


def _empty(
    x: torch.Tensor,
    packed: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor | None,
    group_size: int,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    plain.check(x, packed, scale, zero_point, group_size, bias)
    return like(x, (x.shape[0], packed.shape[0]), out_dtype)


def _refuses(on: dispatch.Machine, x: torch.Tensor, *rest: Any, out: torch.Tensor) -> str | None:
    return other_than_floats(x, out)


define(
    "int4_weight_only_mm",
    "Tensor x, Tensor packed, Tensor scale, Tensor? zero_point, int group_size, Tensor? bias, ScalarType out_dtype",
    {"out": "a"},
    plain.int4_weight_only_mm,
    _empty,
    "out_dtype",
    implementations=(
        dispatch.triton("int4_weight_only_mm", "int4_weight_only_mm", capability=(8, 0), refuses=_refuses),
    ),
)


def int4_weight_only_mm(
    x: torch.Tensor,
    packed: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor | None = None,
    group_size: int = 128,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """x @ ((code - zero point) · scale).T + bias, [M, N], of x [M, K]; float32 sums, rounded once.

    Args:
        x: bfloat16, float16 or float32.
        packed: uint8 [N, ⌈K / 2⌉], two codes a byte, as `int4_layout` says.
        scale: float32, bfloat16 or float16, [N, ⌈K / group_size⌉].
        zero_point: uint8 of the same shape, 0 to 15; None: 8.
        group_size: 32, 64 or 128.
        bias: [N], of any floating-point dtype.
        out_dtype: None: that of x.

    Raises:
        ValueError: shapes or dtypes do not belong together.
    """
    result: torch.Tensor = _ops.int4_weight_only_mm.default(
        x, packed, scale, zero_point, group_size, bias, x.dtype if out_dtype is None else out_dtype
    )
    return result
