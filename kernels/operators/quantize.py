"""Encoding to 8 bits with one scale for a tensor or for each of its rows, and back."""

from __future__ import annotations

from typing import Any

import torch

from policyquant.kernels import dispatch
from policyquant.kernels.cpu import quantize as plain
from policyquant.kernels.operators.refusals import more_dimensions, other_than_floats, other_than_one_scale
from policyquant.kernels.registration import CODES, codes_and_row_scales, define, like

_ops: Any = torch.ops.policyquant
_broadcast_shapes: Any = torch.broadcast_shapes

_SOURCES = (torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)


def _refuses(machine: dispatch.Machine, x: torch.Tensor, *others: Any, **outs: torch.Tensor) -> str | None:
    """What the kernels do not take; they compute in float32."""
    tensors = (x, *(each for each in others if isinstance(each, torch.Tensor)), outs["out"])
    return next((f"it does not take {each.dtype}" for each in tensors if each.dtype not in _SOURCES), None)


def _refuses_cuda(machine: dispatch.Machine, x: torch.Tensor, *others: Any, **outs: torch.Tensor) -> str | None:
    given = next((each for each in others if isinstance(each, torch.Tensor)), None)
    refused = other_than_floats(x) or more_dimensions(x)
    return refused or (None if given is None else other_than_one_scale(given))


def _triton(operator: str) -> tuple[dispatch.Implementation, ...]:
    return (dispatch.triton("quantize", operator, refuses=_refuses),)


def _cuda_and_triton(operator: str) -> tuple[dispatch.Implementation, ...]:
    return (dispatch.cuda(operator, refuses=_refuses_cuda), *_triton(operator))


define(
    "static_scaled_fp8_quant",
    "Tensor x, Tensor scale, ScalarType dtype",
    {"out": "a"},
    plain.static_scaled_fp8_quant,
    lambda x, scale, dtype: like(x, tuple(x.shape), dtype),
    "dtype",
    plain.static_scaled_fp8_quant_out,
    _cuda_and_triton("static_scaled_fp8_quant"),
)
define(
    "dynamic_scaled_fp8_quant",
    "Tensor x, float? scale_ub, ScalarType dtype",
    CODES,
    plain.dynamic_scaled_fp8_quant,
    lambda x, scale_ub, dtype: (like(x, tuple(x.shape), dtype), like(x, (1,), torch.float32)),
    "dtype",
    plain.dynamic_scaled_fp8_quant_out,
    _cuda_and_triton("dynamic_scaled_fp8_quant"),
)
define(
    "per_token_scaled_fp8_quant",
    "Tensor x, float? scale_ub, ScalarType dtype",
    CODES,
    plain.per_token_scaled_fp8_quant,
    lambda x, scale_ub, dtype: codes_and_row_scales(x, dtype),
    "dtype",
    plain.per_token_scaled_fp8_quant_out,
    _cuda_and_triton("per_token_scaled_fp8_quant"),
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


def scaled_fp8_quant(
    x: torch.Tensor,
    scale: torch.Tensor | None = None,
    *,
    per_token: bool = False,
    scale_ub: float | None = None,
    padded_rows: int | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of x and their scale: the one given, else one for the tensor, [1], or for each token, [..., 1].

    Args:
        x: [M, K] if rows are added, else any shape.
        scale: float32, a static scale that broadcasts against x; it is returned as it is.
        per_token: a scale for each row of the last dimension.
        scale_ub: the largest scale that x gives.
        padded_rows: the codes have at least as many rows, as products by blocks ask for. Rows beyond those of x hold
            zeros, and have the scale 2**-126, that of a row of zeros, if each row has one.
        dtype: float8_e4m3fn or float8_e5m2.

    Raises:
        ValueError: a scale is given and also asked for, or rows are to be added to what is not [M, K].
    """
    if scale is not None and (per_token or scale_ub is not None):
        raise ValueError("a static scale is given: per_token and scale_ub are for scales that x gives")
    rows = x.shape[0] if x.ndim else 0
    if padded_rows is not None and x.ndim != 2:
        raise ValueError(f"rows are added to [M, K], found {list(x.shape)}")
    if padded_rows is None or padded_rows <= rows:
        if scale is not None:
            return static_scaled_fp8_quant(x, scale, dtype), scale
        quantizer = per_token_scaled_fp8_quant if per_token else dynamic_scaled_fp8_quant
        return quantizer(x, scale_ub, dtype)
    codes = like(x, (padded_rows, x.shape[1]), dtype)
    codes[rows:].view(torch.uint8).zero_()
    if scale is not None:
        _ops.static_scaled_fp8_quant.out(x, scale, out=codes[:rows])
        return codes, scale
    if not per_token:
        own = like(x, (1,), torch.float32)
        _ops.dynamic_scaled_fp8_quant.out(x, scale_ub, out=codes[:rows], out_scale=own)
        return codes, own
    own = like(x, (padded_rows, 1), torch.float32)
    own[rows:].fill_(plain.SMALLEST_SCALE)
    _ops.per_token_scaled_fp8_quant.out(x, scale_ub, out=codes[:rows], out_scale=own[:rows])
    return codes, own


def dequantize(q: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """q · scale, rounded once to dtype."""
    result: torch.Tensor = _ops.dequantize.default(q, scale, dtype)
    return result
