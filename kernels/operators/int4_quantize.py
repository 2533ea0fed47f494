"""Encoding of weights to 4 bits, with a scale for each group along a row, and a zero point if asked for."""

from __future__ import annotations

from typing import Any

import torch

from policyquant.kernels import dispatch
from policyquant.kernels.cpu import int4_quantize as plain
from policyquant.kernels.operators.refusals import other_than_floats
from policyquant.kernels.registration import CODES, define, like

_ops: Any = torch.ops.policyquant


def _symmetric(w: torch.Tensor, group_size: int, scale_dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    shape = plain.shape_of_groups(w, group_size, scale_dtype)
    return like(w, (*w.shape[:-1], -(-w.shape[-1] // 2)), torch.uint8), like(w, shape, scale_dtype)


def _asymmetric(
    w: torch.Tensor, group_size: int, scale_dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    packed, scale = _symmetric(w, group_size, scale_dtype)
    return packed, scale, like(w, tuple(scale.shape), torch.uint8)


def _refuses(on: dispatch.Machine, w: torch.Tensor, *rest: Any, **outs: Any) -> str | None:
    return other_than_floats(w)


def _triton(operator: str) -> tuple[dispatch.Implementation, ...]:
    return (dispatch.triton("int4_quantize", operator, capability=(8, 0), refuses=_refuses),)


define(
    "int4_group_quant",
    "Tensor w, int group_size, ScalarType scale_dtype",
    CODES,
    plain.int4_group_quant,
    _symmetric,
    implementations=_triton("int4_group_quant"),
)
define(
    "asymmetric_int4_group_quant",
    "Tensor w, int group_size, ScalarType scale_dtype",
    {**CODES, "out_zero_point": "c"},
    plain.asymmetric_int4_group_quant,
    _asymmetric,
    implementations=_triton("asymmetric_int4_group_quant"),
)


def int4_group_quant(
    w: torch.Tensor, group_size: int = 128, scale_dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor]:
    """4-bit codes of w [..., K] in bytes [..., ⌈K / 2⌉], and a scale for each group, [..., ⌈K / group_size⌉].

    A scale is largest finite magnitude / 7.5, at least 2**-126, rounded to `scale_dtype` before codes are made with it.
    `int4_layout` says how codes lie. For float32 weights and scales they are compressed-tensors', but for groups of
    zeros, whose scale is 2**-23 there. NaN has the code of zero and ±inf saturates; a caller refuses weights with them.

    Args:
        w: float32, bfloat16 or float16; the last group of a row may be shorter.
        group_size: 32, 64 or 128.
        scale_dtype: float32 or bfloat16.

    Raises:
        ValueError: another group size or another dtype of scales.
    """
    result: tuple[torch.Tensor, torch.Tensor] = _ops.int4_group_quant.default(w, group_size, scale_dtype)
    return result


def asymmetric_int4_group_quant(
    w: torch.Tensor, group_size: int = 128, scale_dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What `int4_group_quant` gives, and a zero point for each group, [..., ⌈K / group_size⌉] uint8: zero's code.

    A scale is (largest - smallest finite element) / 15, zero counting among them. Arguments and errors are those of
    `int4_group_quant`; the zero point is made with the rounded scale, in compressed-tensors with the unrounded one.
    """
    result: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = _ops.asymmetric_int4_group_quant.default(
        w, group_size, scale_dtype
    )
    return result
