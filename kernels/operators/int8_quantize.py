"""Encoding of activations to int8, with one scale for a tensor or for each token, and a zero point if asked for."""

from __future__ import annotations

from typing import Any

import torch

from policyquant.kernels import dispatch
from policyquant.kernels.cpu import int8_quantize as plain
from policyquant.kernels.operators.refusals import other_than_floats
from policyquant.kernels.registration import CODES, codes_and_row_scales, define, like

_ops: Any = torch.ops.policyquant


def _refuses(on: dispatch.Machine, x: torch.Tensor, *rest: Any, **outs: Any) -> str | None:
    return other_than_floats(x)


def _triton(operator: str) -> tuple[dispatch.Implementation, ...]:
    return (dispatch.triton("int8_quantize", operator, capability=(8, 0), refuses=_refuses),)


def _with_zero_points(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    codes, scale = codes_and_row_scales(x, torch.int8)
    return codes, scale, like(x, tuple(scale.shape), torch.int32)


def _static(x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None) -> torch.Tensor:
    plain.check_static(x, scale, zero_point)
    return like(x, tuple(x.shape), torch.int8)


define(
    "per_token_int8_quant",
    "Tensor x",
    CODES,
    plain.per_token_int8_quant,
    lambda x: codes_and_row_scales(x, torch.int8),
    implementations=_triton("per_token_int8_quant"),
)
define(
    "asymmetric_per_token_int8_quant",
    "Tensor x",
    {**CODES, "out_zero_point": "c"},
    plain.asymmetric_per_token_int8_quant,
    _with_zero_points,
    implementations=_triton("asymmetric_per_token_int8_quant"),
)
define(
    "static_scaled_int8_quant",
    "Tensor x, Tensor scale, Tensor? zero_point",
    {"out": "a"},
    plain.checked_static_scaled_int8_quant,
    _static,
    implementations=_triton("static_scaled_int8_quant"),
)


def per_token_int8_quant(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of x [..., K] and a float32 scale [..., 1] for each row: largest finite magnitude / 127.

    127 is what vLLM's W8A8 divides by, and leaves each element within half a step of its code; compressed-tensors
    simulates the same checkpoints with 127.5, as `per_channel_int8_quant` does for weights.

    ±inf saturates to 127 and -128. int8 has no NaN: a row that holds one has the scale NaN and codes 0, so that what is
    computed from it is NaN and no other row is touched.
    """
    result: tuple[torch.Tensor, torch.Tensor] = _ops.per_token_int8_quant.default(x)
    return result


def asymmetric_per_token_int8_quant(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes of x [..., K], a float32 scale and an int32 zero point [..., 1] for each row; x ≈ (q - zero point) · scale.

    The scale is (largest - smallest finite element) / 255, zero counting among them, so that zero has a code exactly:
    the zero point, -128 - smallest / scale to the nearest integer. NaN and ±inf are as for `per_token_int8_quant`; the
    zero point beside a scale NaN is 0.
    """
    result: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = _ops.asymmetric_per_token_int8_quant.default(x)
    return result


def static_scaled_int8_quant(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None = None
) -> torch.Tensor:
    """Codes of x: x / scale to the nearest integer, ties to even, plus the zero point, clamped to [-128, 127].

    A NaN element has the code of zero, since nothing here could carry it; ±inf saturates.

    Args:
        scale: one float32; below 2**-126 it is taken for 2**-126.
        zero_point: one int32 in [-128, 127]; None: 0.

    Raises:
        ValueError: the scale or the zero point has another shape or dtype.
    """
    result: torch.Tensor = _ops.static_scaled_int8_quant.default(x, scale, zero_point)
    return result
