"""Products of activations as they are with 8-bit weights."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from policyquant.kernels import dispatch
from policyquant.kernels.cpu import weight_only_mm as plain
from policyquant.kernels.registration import define, like

_ops: Any = torch.ops.policyquant


def _product(
    name: str,
    x: torch.Tensor,
    q: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    plain.check(name, x, q, scale, bias)
    return like(x, (x.shape[0], q.shape[0]), out_dtype)


def _other_activations(on: dispatch.Machine, x: torch.Tensor, *inputs: Any, **outs: Any) -> str | None:
    plain_floats = (torch.bfloat16, torch.float16, torch.float32)
    return None if x.dtype in plain_floats else f"it takes bfloat16, float16 and float32 activations, not {x.dtype}"


for _name, _plain in (
    ("fp8_weight_only_mm", plain.fp8_weight_only_mm),
    ("int8_weight_only_mm", plain.int8_weight_only_mm),
):
    define(
        _name,
        "Tensor x, Tensor q, Tensor scale, Tensor? bias, ScalarType out_dtype",
        {"out": "a"},
        _plain,
        partial(_product, _name),
        "out_dtype",
        # The codes are decoded by their bits where a GPU has no 8-bit floats.
        implementations=(dispatch.triton("weight_only_mm", _name, capability=(8, 0), refuses=_other_activations),),
    )


def fp8_weight_only_mm(
    x: torch.Tensor,
    q: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """x @ (q · scale).T + bias, [M, N], of x [M, K] and FP8 codes q [N, K]; float32 sums, rounded once.

    The scale is [1], [N, 1], or [ceil(N / 128), ceil(K / 128)]: one for each block of 128 by 128 codes.

    Raises:
        ValueError: the shapes do not belong together, or q holds no 8-bit floats.
    """
    result: torch.Tensor = _ops.fp8_weight_only_mm.default(
        x, q, scale, bias, x.dtype if out_dtype is None else out_dtype
    )
    return result


def int8_weight_only_mm(
    x: torch.Tensor,
    q: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """(x @ q.T) · scale.T + bias, [M, N], of x [M, K] and int8 codes q [N, K]; float32 sums, rounded once.

    The scale is as for `fp8_weight_only_mm`.
    """
    result: torch.Tensor = _ops.int8_weight_only_mm.default(
        x, q, scale, bias, x.dtype if out_dtype is None else out_dtype
    )
    return result


def weight_only_mm(
    x: torch.Tensor,
    q: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """The product with a weight of 8 bits: `fp8_weight_only_mm` or `int8_weight_only_mm`, by the dtype of q."""
    multiply = int8_weight_only_mm if q.dtype == torch.int8 else fp8_weight_only_mm
    return multiply(x, q, scale, bias, out_dtype)
