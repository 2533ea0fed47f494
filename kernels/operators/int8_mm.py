"""Products of int8 codes with int8 codes."""

from __future__ import annotations

from typing import Any

import torch

from policyquant.kernels import dispatch
from policyquant.kernels.cpu import int8_mm as plain
from policyquant.kernels.operators.refusals import other_than_floats
from policyquant.kernels.registration import define, like

_ops: Any = torch.ops.policyquant


def _empty(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None,
    zero_point: torch.Tensor | None,
    weight_sums: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    plain.check(a, b, scale_a, scale_b, bias, zero_point, weight_sums)
    return like(a, (a.shape[0], b.shape[0]), out_dtype)


def _refuses(on: dispatch.Machine, *inputs: Any, out: torch.Tensor) -> str | None:
    return other_than_floats(out)


define(
    "scaled_int8_mm",
    "Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor? bias, Tensor? zero_point, Tensor? weight_sums,"
    " ScalarType out_dtype",
    {"out": "a"},
    plain.scaled_int8_mm,
    _empty,
    "out_dtype",
    implementations=(dispatch.triton("int8_mm", "scaled_int8_mm", capability=(8, 0), refuses=_refuses),),
)


def scaled_int8_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    zero_point: torch.Tensor | None = None,
    weight_sums: torch.Tensor | None = None,
) -> torch.Tensor:
    """((a - zero_point) @ b.T) · scale_a · scale_b.T + bias, [M, N], of int8 a [M, K] and b [N, K].

    Sums are int32 and exact. They are rounded to float32, multiplied by both scales, and rounded once to `out_dtype`.

    Args:
        scale_a: float32, [1] or [M, 1]; a row whose scale is NaN gives NaN.
        scale_b: float32, [1] or [N, 1].
        bias: [N], of any floating-point dtype.
        out_dtype: BF16, FP16 or FP32.
        zero_point: int32, [1] or [M, 1], in [-128, 127]: the code of a that stands for zero. None: 0.
        weight_sums: int32 [N], b.sum(1, dtype=torch.int32), made once. It goes with zero_point.

    Raises:
        ValueError: shapes or dtypes do not fit each other, or K is above 65536, where int32 might not hold a sum.
    """
    result: torch.Tensor = _ops.scaled_int8_mm.default(a, b, scale_a, scale_b, bias, zero_point, weight_sums, out_dtype)
    return result
