"""Root mean square normalization, with the residual addition that precedes it, as it is or encoded to FP8."""

from __future__ import annotations

from typing import Any, Final

import torch

from policyquant.kernels import dispatch
from policyquant.kernels.cpu import norm as plain
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

_PLAIN: Final = {"out": "a"}
_SUM: Final = {"out_residual": "c"}


def _refuses(on: dispatch.Machine, x: torch.Tensor, *rest: Any, **outs: Any) -> str | None:
    return other_than_floats(x, *rest) or (None if x.shape[-1] else "it takes rows that are not empty")


def _refuses_sum(on: dispatch.Machine, x: torch.Tensor, residual: torch.Tensor, *rest: Any, **outs: Any) -> str | None:
    if residual.shape != x.shape or residual.dtype != x.dtype:
        return f"it adds a residual like x, found {list(residual.shape)} {residual.dtype}"
    return _refuses(on, x, *rest)


def _refuses_static(
    on: dispatch.Machine, x: torch.Tensor, weight: torch.Tensor, eps: float, scale: torch.Tensor, **outs: Any
) -> str | None:
    return other_than_one_scale(scale) or _refuses(on, x, weight)


def _refuses_sum_static(
    on: dispatch.Machine,
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    scale: torch.Tensor,
    **outs: Any,
) -> str | None:
    return other_than_one_scale(scale) or _refuses_sum(on, x, residual, weight)


def _normal(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    plain.check_weight(x, weight)
    return like(x, tuple(x.shape), torch.promote_types(x.dtype, weight.dtype))


def _total(x: torch.Tensor) -> torch.Tensor:
    return like(x, tuple(x.shape), x.dtype)


def _codes(x: torch.Tensor, weight: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    plain.check_weight(x, weight)
    return like(x, tuple(x.shape), dtype)


def _row_scales(x: torch.Tensor) -> torch.Tensor:
    return like(x, (*x.shape[:-1], 1), torch.float32)


def _group_scales(x: torch.Tensor, group_size: int, column_major: bool) -> torch.Tensor:
    return empty_scales(x, group_shape(x, group_size), column_major, torch.float32)


def _for_cuda(refuses: dispatch.Refusal) -> dispatch.Refusal:
    """What speaks against the CUDA kernels: what does against Triton's, and more."""

    def refuses_cuda(on: dispatch.Machine, x: torch.Tensor, *rest: Any, **outs: Any) -> str | None:
        tensors = [each for each in rest if isinstance(each, torch.Tensor)]
        refused = refuses(on, x, *rest, **outs) or more_dimensions(x, *tensors)
        weight = next(each for each in tensors if each.ndim == 1)
        if refused is None and weight.dtype not in (x.dtype, torch.float32):
            return f"it takes a weight like x or in float32, found {weight.dtype} and {x.dtype}"
        return refused

    return refuses_cuda


def _by(operator: str, refuses: dispatch.Refusal = _refuses, **of_triton: Any) -> tuple[dispatch.Implementation, ...]:
    return (
        dispatch.cuda(operator, refuses=_for_cuda(refuses)),
        dispatch.triton("norm", operator, refuses=refuses, **of_triton),
    )


define(
    "rms_norm",
    "Tensor x, Tensor weight, float eps",
    _PLAIN,
    plain.rms_norm,
    lambda x, weight, eps: _normal(x, weight),
    implementations=_by("rms_norm", capability=(8, 0)),
)
define(
    "fused_add_rms_norm",
    "Tensor x, Tensor residual, Tensor weight, float eps",
    _PLAIN | _SUM,
    plain.fused_add_rms_norm,
    lambda x, residual, weight, eps: (_normal(x, weight), _total(x)),
    implementations=_by("fused_add_rms_norm", _refuses_sum, capability=(8, 0)),
)
define(
    "rms_norm_static_fp8_quant",
    "Tensor x, Tensor weight, float eps, Tensor scale, ScalarType dtype",
    _PLAIN,
    plain.rms_norm_static_fp8_quant,
    lambda x, weight, eps, scale, dtype: _codes(x, weight, dtype),
    "dtype",
    implementations=_by("rms_norm_static_fp8_quant", _refuses_static),
)
define(
    "fused_add_rms_norm_static_fp8_quant",
    "Tensor x, Tensor residual, Tensor weight, float eps, Tensor scale, ScalarType dtype",
    _PLAIN | _SUM,
    plain.fused_add_rms_norm_static_fp8_quant,
    lambda x, residual, weight, eps, scale, dtype: (_codes(x, weight, dtype), _total(x)),
    "dtype",
    implementations=_by("fused_add_rms_norm_static_fp8_quant", _refuses_sum_static),
)
define(
    "rms_norm_per_token_fp8_quant",
    "Tensor x, Tensor weight, float eps, float? scale_ub, ScalarType dtype",
    CODES,
    plain.rms_norm_per_token_fp8_quant,
    lambda x, weight, eps, scale_ub, dtype: (_codes(x, weight, dtype), _row_scales(x)),
    "dtype",
    implementations=_by("rms_norm_per_token_fp8_quant"),
)
define(
    "fused_add_rms_norm_per_token_fp8_quant",
    "Tensor x, Tensor residual, Tensor weight, float eps, float? scale_ub, ScalarType dtype",
    CODES | _SUM,
    plain.fused_add_rms_norm_per_token_fp8_quant,
    lambda x, residual, weight, eps, scale_ub, dtype: (_codes(x, weight, dtype), _row_scales(x), _total(x)),
    "dtype",
    implementations=_by("fused_add_rms_norm_per_token_fp8_quant", _refuses_sum),
)
define(
    "rms_norm_group_fp8_quant",
    "Tensor x, Tensor weight, float eps, int group_size, bool column_major, bool power_of_two, ScalarType dtype",
    CODES,
    plain.rms_norm_group_fp8_quant,
    lambda x, weight, eps, group_size, column_major, power_of_two, dtype: (
        _codes(x, weight, dtype),
        _group_scales(x, group_size, column_major),
    ),
    "dtype",
    implementations=_by("rms_norm_group_fp8_quant"),
)
define(
    "fused_add_rms_norm_group_fp8_quant",
    "Tensor x, Tensor residual, Tensor weight, float eps, int group_size, bool column_major, bool power_of_two,"
    " ScalarType dtype",
    CODES | _SUM,
    plain.fused_add_rms_norm_group_fp8_quant,
    lambda x, residual, weight, eps, group_size, column_major, power_of_two, dtype: (
        _codes(x, weight, dtype),
        _group_scales(x, group_size, column_major),
        _total(x),
    ),
    "dtype",
    implementations=_by("fused_add_rms_norm_group_fp8_quant", _refuses_sum),
)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / sqrt(mean(x²) + eps) · weight over the last dimension."""
    result: torch.Tensor = _ops.rms_norm.default(x, weight, eps)
    return result


def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm of x + residual, and that sum."""
    result: tuple[torch.Tensor, torch.Tensor] = _ops.fused_add_rms_norm.default(x, residual, weight, eps)
    return result


def rms_norm_quant(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    scale: torch.Tensor | None = None,
    *,
    group_size: int | None = None,
    column_major: bool = False,
    power_of_two: bool = False,
    scale_ub: float | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of the norm, the same as those of what `rms_norm` returns, in one pass.

    The norm is rounded as `rms_norm` rounds it before it is encoded.

    Args:
        x: [..., N]; weight: [N].
        scale: float32 [1], if it is fixed beforehand; it is returned.
        group_size: a scale for each group of so many; with neither, one for each row, at most `scale_ub`.
        column_major, power_of_two: of the scales of groups, as in `group_fp8_quant`.

    Raises:
        ValueError: the weight is not [N], or the arguments do not go together.
    """
    check_scales("a norm", scale, group_size, column_major, power_of_two, scale_ub)
    if scale is not None:
        return _ops.rms_norm_static_fp8_quant.default(x, weight, eps, scale, dtype), scale
    result: tuple[torch.Tensor, torch.Tensor]
    if group_size is not None:
        result = _ops.rms_norm_group_fp8_quant.default(x, weight, eps, group_size, column_major, power_of_two, dtype)
    else:
        result = _ops.rms_norm_per_token_fp8_quant.default(x, weight, eps, scale_ub, dtype)
    return result


def fused_add_rms_norm_quant(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    scale: torch.Tensor | None = None,
    *,
    group_size: int | None = None,
    column_major: bool = False,
    power_of_two: bool = False,
    scale_ub: float | None = None,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes and scales of the norm of x + residual, and that sum in the dtype of x."""
    check_scales("a norm", scale, group_size, column_major, power_of_two, scale_ub)
    if scale is not None:
        codes, total = _ops.fused_add_rms_norm_static_fp8_quant.default(x, residual, weight, eps, scale, dtype)
        return codes, scale, total
    result: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    if group_size is not None:
        result = _ops.fused_add_rms_norm_group_fp8_quant.default(
            x, residual, weight, eps, group_size, column_major, power_of_two, dtype
        )
    else:
        result = _ops.fused_add_rms_norm_per_token_fp8_quant.default(x, residual, weight, eps, scale_ub, dtype)
    return result
