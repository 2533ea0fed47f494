"""Products with weights in MX or NVFP4: of activations as they are, and of activations in MX."""

from __future__ import annotations

from typing import Any

import torch

from policyquant.kernels import dispatch
from policyquant.kernels.cpu import microscaling_mm as plain
from policyquant.kernels.cpu.microscaling import MX_BLOCK, NVFP4_BLOCK, check_global_scale
from policyquant.kernels.operators.refusals import other_than_floats
from policyquant.kernels.registration import define, like

_ops: Any = torch.ops.policyquant


def _mx(
    x: torch.Tensor, q: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None, out_dtype: torch.dtype
) -> torch.Tensor:
    plain.check("mx_weight_only_mm", tuple(x.shape), q, scale, MX_BLOCK, bias)
    return like(x, (x.shape[0], q.shape[0]), out_dtype)


def _nvfp4(
    x: torch.Tensor,
    q: torch.Tensor,
    scale: torch.Tensor,
    global_scale: torch.Tensor,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    plain.check("nvfp4_weight_only_mm", tuple(x.shape), q, scale, NVFP4_BLOCK, bias)
    check_global_scale(global_scale)
    return like(x, (x.shape[0], q.shape[0]), out_dtype)


def _scaled(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    plain.check_scaled(a, b, scale_a, scale_b, bias)
    return like(a, (a.shape[0], b.shape[0]), out_dtype)


def _refuses(on: dispatch.Machine, x: torch.Tensor, *rest: Any, out: torch.Tensor) -> str | None:
    return other_than_floats(x, out)


def _refuses_result(on: dispatch.Machine, *inputs: Any, out: torch.Tensor) -> str | None:
    return other_than_floats(out)


def _triton(operator: str, refuses: dispatch.Refusal) -> tuple[dispatch.Implementation, ...]:
    # Codes and scales are decoded by their bits, so a GPU without 8-bit floats will do.
    return (dispatch.triton("microscaling_mm", operator, capability=(8, 0), refuses=refuses),)


define(
    "mx_weight_only_mm",
    "Tensor x, Tensor q, Tensor scale, Tensor? bias, ScalarType out_dtype",
    {"out": "a"},
    plain.mx_weight_only_mm,
    _mx,
    "out_dtype",
    implementations=_triton("mx_weight_only_mm", _refuses),
)
define(
    "nvfp4_weight_only_mm",
    "Tensor x, Tensor q, Tensor scale, Tensor global_scale, Tensor? bias, ScalarType out_dtype",
    {"out": "a"},
    plain.nvfp4_weight_only_mm,
    _nvfp4,
    "out_dtype",
    implementations=_triton("nvfp4_weight_only_mm", _refuses),
)
define(
    "mx_scaled_mm",
    "Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor? bias, ScalarType out_dtype",
    {"out": "a"},
    plain.mx_scaled_mm,
    _scaled,
    "out_dtype",
    implementations=_triton("mx_scaled_mm", _refuses_result),
)


def mx_weight_only_mm(
    x: torch.Tensor,
    q: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """x @ (q · scale).T + bias, [M, N], of x [M, K]; float32 sums, rounded once.

    Args:
        x: bfloat16, float16 or float32.
        q: E4M3 codes [N, K], or E2M1 codes two a byte, uint8 [N, K / 2]: MXFP8 or MXFP4. They hold no NaN.
        scale: [N, ceil(K / 32)] float8_e8m0fnu, or its bytes in uint8. NaN makes its channel NaN.
        bias: [N], of any floating-point dtype.
        out_dtype: None: that of x.

    Raises:
        ValueError: shapes or dtypes do not belong together.
    """
    result: torch.Tensor = _ops.mx_weight_only_mm.default(
        x, q, scale, bias, x.dtype if out_dtype is None else out_dtype
    )
    return result


def nvfp4_weight_only_mm(
    x: torch.Tensor,
    q: torch.Tensor,
    scale: torch.Tensor,
    global_scale: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """(x @ (q · scale).T) · global_scale + bias, [M, N], of x [M, K] and E2M1 codes uint8 [N, K / 2].

    The scales are [N, ceil(K / 16)] float8_e4m3fn and [1] float32; otherwise as `mx_weight_only_mm`.

    Raises:
        ValueError: shapes or dtypes do not belong together.
    """
    result: torch.Tensor = _ops.nvfp4_weight_only_mm.default(
        x, q, scale, global_scale, bias, x.dtype if out_dtype is None else out_dtype
    )
    return result


def mx_scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """(a · scale_a) @ (b · scale_b).T + bias, [M, N], of MXFP8 a [M, K] and a weight b in MXFP8 or MXFP4.

    On compute capability 10.0 the matrix unit reads codes and scales as they are; elsewhere both are decoded.

    Args:
        a: E4M3 codes; scale_a [M, ceil(K / 32)], float8_e8m0fnu or its bytes in uint8.
        b: E4M3 codes [N, K] or E2M1 codes uint8 [N, K / 2]; scale_b [N, ceil(K / 32)].
        bias: [N], of any floating-point dtype.

    Raises:
        ValueError: shapes or dtypes do not belong together.
    """
    result: torch.Tensor = _ops.mx_scaled_mm.default(a, b, scale_a, scale_b, bias, out_dtype)
    return result
