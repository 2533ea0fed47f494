"""Gated activations: [..., 2N] = [gate | up] to [..., N], as they are or encoded to FP8."""

from __future__ import annotations

from typing import Any

import torch

from policyquant.kernels import dispatch
from policyquant.kernels.cpu import activation as plain
from policyquant.kernels.cpu.group_quantize import group_shape
from policyquant.kernels.operators.group_quantize import check_scales
from policyquant.kernels.operators.refusals import (
    more_dimensions,
    other_than_floats,
    other_than_one_scale,
)
from policyquant.kernels.registration import CODES, define, like
from policyquant.kernels.scale_layouts import empty_scales

_ops: Any = torch.ops.policyquant


def _half(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    if approximate not in ("none", "tanh"):
        raise ValueError(f"approximate is 'none' or 'tanh'; found {approximate!r}")
    return like(x, plain.half_shape(x), x.dtype)


def _codes(x: torch.Tensor, scale: torch.Tensor, activation: str, dtype: torch.dtype) -> torch.Tensor:
    plain.check_activation(activation)
    return like(x, plain.half_shape(x), dtype)


def _codes_per_token(
    x: torch.Tensor, activation: str, scale_ub: float | None, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    plain.check_activation(activation)
    shape = plain.half_shape(x)
    return like(x, shape, dtype), like(x, (*shape[:-1], 1), torch.float32)


def _codes_per_group(
    x: torch.Tensor, activation: str, group_size: int, column_major: bool, power_of_two: bool, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    plain.check_activation(activation)
    codes = like(x, plain.half_shape(x), dtype)
    return codes, empty_scales(x, group_shape(codes, group_size), column_major, torch.float32)


def _refuses(on: dispatch.Machine, x: torch.Tensor, *rest: Any, **targets: Any) -> str | None:
    return other_than_floats(x)


def _refuses_static(
    on: dispatch.Machine, x: torch.Tensor, scale: torch.Tensor, *rest: Any, **targets: Any
) -> str | None:
    return other_than_one_scale(scale) or other_than_floats(x)


def _refuses_cuda(on: dispatch.Machine, x: torch.Tensor, *rest: Any, **targets: Any) -> str | None:
    return other_than_floats(x) or more_dimensions(x)


def _refuses_cuda_static(
    on: dispatch.Machine, x: torch.Tensor, scale: torch.Tensor, *rest: Any, **targets: Any
) -> str | None:
    return other_than_one_scale(scale) or _refuses_cuda(on, x)


def _by(
    operator: str, refuses_cuda: dispatch.Refusal, refuses: dispatch.Refusal = _refuses, **of_triton: Any
) -> tuple[dispatch.Implementation, ...]:
    return (
        dispatch.cuda(operator, refuses=refuses_cuda),
        dispatch.triton("activation", operator, refuses=refuses, **of_triton),
    )


define(
    "silu_and_mul",
    "Tensor x",
    {"out": "a"},
    plain.silu_and_mul,
    _half,
    implementations=_by("silu_and_mul", _refuses_cuda, capability=(8, 0)),
)
define(
    "gelu_and_mul",
    "Tensor x, str approximate",
    {"out": "a"},
    plain.gelu_and_mul,
    _half,
    implementations=_by("gelu_and_mul", _refuses_cuda, capability=(8, 0)),
)
define(
    "gated_activation_static_fp8_quant",
    "Tensor x, Tensor scale, str activation, ScalarType dtype",
    {"out": "a"},
    plain.gated_activation_static_fp8_quant,
    _codes,
    "dtype",
    implementations=_by("gated_activation_static_fp8_quant", _refuses_cuda_static, _refuses_static),
)
define(
    "gated_activation_per_token_fp8_quant",
    "Tensor x, str activation, float? scale_ub, ScalarType dtype",
    CODES,
    plain.gated_activation_per_token_fp8_quant,
    _codes_per_token,
    "dtype",
    implementations=_by("gated_activation_per_token_fp8_quant", _refuses_cuda),
)


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """silu(gate) · up of x = [gate | up], [..., 2N] to [..., N]."""
    result: torch.Tensor = _ops.silu_and_mul.default(x)
    return result


def gelu_and_mul(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """gelu(gate) · up of x = [gate | up], [..., 2N] to [..., N]."""
    result: torch.Tensor = _ops.gelu_and_mul.default(x, approximate)
    return result


define(
    "gated_activation_group_fp8_quant",
    "Tensor x, str activation, int group_size, bool column_major, bool power_of_two, ScalarType dtype",
    CODES,
    plain.gated_activation_group_fp8_quant,
    _codes_per_group,
    "dtype",
    implementations=_by("gated_activation_group_fp8_quant", _refuses_cuda),
)


def gated_activation_static_fp8_quant(
    x: torch.Tensor, scale: torch.Tensor, activation: str = "silu", dtype: torch.dtype = torch.float8_e4m3fn
) -> torch.Tensor:
    """Codes [..., N] of activation(gate) · up / scale; activation: silu, gelu or gelu_tanh; scale is [1] float32."""
    result: torch.Tensor = _ops.gated_activation_static_fp8_quant.default(x, scale, activation, dtype)
    return result


def gated_activation_per_token_fp8_quant(
    x: torch.Tensor,
    activation: str = "silu",
    scale_ub: float | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [..., N] of activation(gate) · up and a scale [..., 1] for each row, at most `scale_ub`."""
    result: tuple[torch.Tensor, torch.Tensor] = _ops.gated_activation_per_token_fp8_quant.default(
        x, activation, scale_ub, dtype
    )
    return result


def gated_activation_group_fp8_quant(
    x: torch.Tensor,
    activation: str = "silu",
    group_size: int = 128,
    column_major: bool = False,
    power_of_two: bool = False,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [..., N] of activation(gate) · up and scales [..., ⌈N / group_size⌉], laid out as by `group_fp8_quant`."""
    result: tuple[torch.Tensor, torch.Tensor] = _ops.gated_activation_group_fp8_quant.default(
        x, activation, group_size, column_major, power_of_two, dtype
    )
    return result


def silu_and_mul_quant(
    x: torch.Tensor,
    scale: torch.Tensor | None = None,
    *,
    group_size: int | None = None,
    column_major: bool = False,
    power_of_two: bool = False,
    scale_ub: float | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of silu(gate) · up of x = [gate | up], the same as those of `silu_and_mul`, in one pass.

    Args:
        x: [..., 2N].
        scale: float32 [1], if it is fixed beforehand; it is returned.
        group_size: a scale for each group of so many; with neither, one for each row, at most `scale_ub`.
        column_major, power_of_two: of the scales of groups, as in `group_fp8_quant`.

    Raises:
        ValueError: the last dimension cannot be halved, or the arguments do not go together.
    """
    return _quantized(x, "silu", scale, group_size, column_major, power_of_two, scale_ub, dtype)


def gelu_and_mul_quant(
    x: torch.Tensor,
    scale: torch.Tensor | None = None,
    *,
    approximate: str = "none",
    group_size: int | None = None,
    column_major: bool = False,
    power_of_two: bool = False,
    scale_ub: float | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of gelu(gate) · up, as `silu_and_mul_quant` gives them; gelu exact ("none") or by "tanh"."""
    if approximate not in ("none", "tanh"):
        raise ValueError(f"approximate is 'none' or 'tanh'; found {approximate!r}")
    activation = "gelu" if approximate == "none" else "gelu_tanh"
    return _quantized(x, activation, scale, group_size, column_major, power_of_two, scale_ub, dtype)


def _quantized(
    x: torch.Tensor,
    activation: str,
    scale: torch.Tensor | None,
    group_size: int | None,
    column_major: bool,
    power_of_two: bool,
    scale_ub: float | None,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    check_scales("a gated activation", scale, group_size, column_major, power_of_two, scale_ub)
    if scale is not None:
        return gated_activation_static_fp8_quant(x, scale, activation, dtype), scale
    if group_size is not None:
        return gated_activation_group_fp8_quant(x, activation, group_size, column_major, power_of_two, dtype)
    return gated_activation_per_token_fp8_quant(x, activation, scale_ub, dtype)
