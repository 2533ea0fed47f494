"""Encoding to 8 bits with one scale for a tensor or for each of its rows, and back."""

from __future__ import annotations

from typing import Any

import torch

from policyquant.kernels import dispatch
from policyquant.kernels.cpu import quantize as plain
from policyquant.kernels.registration import CODES, codes_and_row_scales, define, like

_ops: Any = torch.ops.policyquant
_broadcast_shapes: Any = torch.broadcast_shapes

_SOURCES = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)


def _refuses(machine: dispatch.Machine, x: torch.Tensor, *others: Any, **outs: torch.Tensor) -> str | None:
    """What the kernels do not take; they compute in float32."""
    tensors = (x, *(each for each in others if isinstance(each, torch.Tensor)), outs["out"])
    return next((f"it does not take {each.dtype}" for each in tensors if each.dtype not in _SOURCES), None)


def _triton(operator: str) -> tuple[dispatch.Implementation, ...]:
    return (dispatch.triton("quantize", operator, refuses=_refuses),)


define(
    "static_scaled_fp8_quant",
    "Tensor x, Tensor scale, ScalarType dtype",
    {"out": "a"},
    plain.static_scaled_fp8_quant,
    lambda x, scale, dtype: like(x, tuple(x.shape), dtype),
    "dtype",
    plain.static_scaled_fp8_quant_out,
    _triton("static_scaled_fp8_quant"),
)
define(
    "dynamic_scaled_fp8_quant",
    "Tensor x, float? scale_ub, ScalarType dtype",
    CODES,
    plain.dynamic_scaled_fp8_quant,
    lambda x, scale_ub, dtype: (like(x, tuple(x.shape), dtype), like(x, (1,), torch.float32)),
    "dtype",
    plain.dynamic_scaled_fp8_quant_out,
    _triton("dynamic_scaled_fp8_quant"),
)
define(
    "per_token_scaled_fp8_quant",
    "Tensor x, float? scale_ub, ScalarType dtype",
    CODES,
    plain.per_token_scaled_fp8_quant,
    lambda x, scale_ub, dtype: codes_and_row_scales(x, dtype),
    "dtype",
    plain.per_token_scaled_fp8_quant_out,
    _triton("per_token_scaled_fp8_quant"),
)
define(
    "per_channel_int8_quant",
    "Tensor w",
    CODES,
    plain.per_channel_int8_quant,
    lambda w: codes_and_row_scales(w, torch.int8),
    cpu_out=plain.per_channel_int8_quant_out,
    implementations=_triton("per_channel_int8_quant"),
)
define(
    "dequantize",
    "Tensor q, Tensor scale, ScalarType dtype",
    {"out": "a"},
    plain.dequantize,
    lambda q, scale, dtype: like(q, tuple(_broadcast_shapes(q.shape, scale.shape)), dtype),
    "dtype",
    implementations=_triton("dequantize"),
)


def static_scaled_fp8_quant(
    x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype = torch.float8_e4m3fn
) -> torch.Tensor:
    """Codes of x / scale; scale is [1] float32."""
    result: torch.Tensor = _ops.static_scaled_fp8_quant.default(x, scale, dtype)
    return result


def dynamic_scaled_fp8_quant(
    x: torch.Tensor, scale_ub: float | None = None, dtype: torch.dtype = torch.float8_e4m3fn
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of x and one scale [1]: largest finite magnitude / largest value of dtype, at most `scale_ub`."""
    result: tuple[torch.Tensor, torch.Tensor] = _ops.dynamic_scaled_fp8_quant.default(x, scale_ub, dtype)
    return result


def per_token_scaled_fp8_quant(
    x: torch.Tensor, scale_ub: float | None = None, dtype: torch.dtype = torch.float8_e4m3fn
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of x and a scale [..., 1] for each row of the last dimension."""
    result: tuple[torch.Tensor, torch.Tensor] = _ops.per_token_scaled_fp8_quant.default(x, scale_ub, dtype)
    return result


def per_channel_int8_quant(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes in [-128, 127] of w and a scale [..., 1] for each row: largest magnitude / 127.5."""
    result: tuple[torch.Tensor, torch.Tensor] = _ops.per_channel_int8_quant.default(w)
    return result


def dequantize(q: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """q · scale, rounded once to dtype."""
    result: torch.Tensor = _ops.dequantize.default(q, scale, dtype)
    return result
