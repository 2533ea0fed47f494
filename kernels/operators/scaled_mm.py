"""Products of FP8 codes with FP8 codes."""

from __future__ import annotations

from typing import Any

import torch

from policyquant.kernels import dispatch
from policyquant.kernels.cpu import scaled_mm as plain
from policyquant.kernels.libraries import deep_gemm, flashinfer, torch_scaled_mm
from policyquant.kernels.machine import Machine
from policyquant.kernels.registration import define, like

GROUP = plain.GROUP
FEW_ROWS = 64
"""Up to here the time is that of reading the weight, and the Triton kernel, which splits K, goes before libraries."""

_ops: Any = torch.ops.policyquant
_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_RESULTS = (torch.bfloat16, torch.float16, torch.float32, *_FP8)
_ARGUMENTS = (
    "Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor? bias, Tensor? scale_result, ScalarType out_dtype"
)


def _empty(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None,
    scale_result: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise ValueError(f"a product of {list(a.shape)} with {list(b.shape)}; expected [M, K] and [N, K]")
    if bias is not None and bias.shape != (b.shape[0],):
        raise ValueError(f"a bias {list(bias.shape)} for {b.shape[0]} channels; expected [{b.shape[0]}]")
    if scale_result is not None and out_dtype not in _FP8:
        raise ValueError(f"a scale of the result, which is {out_dtype}; only an FP8 result has one")
    return like(a, (a.shape[0], b.shape[0]), out_dtype)


def _empty_by_rows(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None,
    scale_result: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    out = _empty(a, b, bias, scale_result, out_dtype)
    if not _of_rows(a, scale_a) or not _of_rows(b, scale_b):
        raise _misfit("scaled_mm", scale_a, scale_b, a, b)
    return out


def _empty_by_blocks(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None,
    scale_result: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    out = _empty(a, b, bias, scale_result, out_dtype)
    if not _of_blocks(a, b, scale_a, scale_b):
        raise _misfit("block_scaled_mm", scale_a, scale_b, a, b)
    return out


def _of_rows(x: torch.Tensor, scale: torch.Tensor) -> bool:
    """Whether it is one scale, or one for each row of x."""
    return scale.shape == (x.shape[0], 1) or (scale.numel() == 1 and scale.ndim <= 2)


def _of_blocks(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor) -> bool:
    groups = -(-a.shape[1] // GROUP)
    return scale_a.shape == (a.shape[0], groups) and scale_b.shape == (-(-b.shape[0] // GROUP), groups)


def _misfit(name: str, scale_a: torch.Tensor, scale_b: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> ValueError:
    rows, channels, groups = a.shape[0], b.shape[0], -(-a.shape[1] // GROUP)
    by_row = f"[1] or [{rows}, 1] for a and [1] or [{channels}, 1] for b"
    by_block = f"[{rows}, {groups}] for a and [{-(-channels // GROUP)}, {groups}] for b"
    expected = {"scaled_mm": by_row, "block_scaled_mm": by_block}.get(name, f"{by_row}; or {by_block}")
    return ValueError(f"scales {list(scale_a.shape)} for a and {list(scale_b.shape)} for b; expected {expected}")


def _not_fp8(on: Machine, a: torch.Tensor, b: torch.Tensor, *others: Any, out: torch.Tensor) -> str | None:
    if a.dtype not in _FP8 or b.dtype not in _FP8:
        return f"it multiplies FP8 with FP8, found {a.dtype} with {b.dtype}"
    return None if out.dtype in _RESULTS else f"it has no result in {out.dtype}"


def _many_rows(on: Machine, a: torch.Tensor, b: torch.Tensor, *others: Any, out: torch.Tensor) -> str | None:
    if a.shape[0] > FEW_ROWS:
        return f"for more than {FEW_ROWS} rows libraries go before it"
    return _not_fp8(on, a, b, out=out)


_FAST_ACCUM = dispatch.Implementation(
    "triton_fast_accum",
    "policyquant.kernels.triton.scaled_mm:scaled_mm_fast_accum",
    "triton",
    capability=(8, 9),
    below=(11, 0),
    refuses=_not_fp8,
)
"""Sums of fewer bits: after the exact one, so it runs only where it is asked for."""

define(
    "scaled_mm",
    _ARGUMENTS,
    {"out": "a"},
    plain.scaled_mm,
    _empty_by_rows,
    "out_dtype",
    implementations=(
        dispatch.triton("scaled_mm", "scaled_mm", refuses=_many_rows),
        torch_scaled_mm.BY_ROWS,
        dispatch.triton("scaled_mm", "scaled_mm", refuses=_not_fp8),
        _FAST_ACCUM,
    ),
)
define(
    "block_scaled_mm",
    _ARGUMENTS,
    {"out": "a"},
    plain.block_scaled_mm,
    _empty_by_blocks,
    "out_dtype",
    implementations=(
        dispatch.triton("scaled_mm", "block_scaled_mm", refuses=_many_rows),
        deep_gemm.BY_BLOCKS,
        flashinfer.BY_BLOCKS,
        torch_scaled_mm.BY_BLOCKS,
        dispatch.triton("scaled_mm", "block_scaled_mm", refuses=_not_fp8),
    ),
)


def scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    scale_result: torch.Tensor | None = None,
) -> torch.Tensor:
    """(a @ b.T) · scale_a · scale_b.T + bias, [M, N], of FP8 a [M, K] and b [N, K]; float32 sums, rounded once.

    The shapes of the scales say what they belong to. Each of scale_a [1] or [M, 1] goes with each of scale_b [1] or
    [N, 1]. Groups of 128 columns, scale_a [M, ⌈K / 128⌉], go with blocks of 128 × 128, scale_b [⌈N / 128⌉, ⌈K / 128⌉];
    see `block_scaled_mm`. Where both can be read (K, N ≤ 128), they mean the same.

    Args:
        bias: [N], of any floating-point dtype.
        out_dtype: BF16, FP16, FP32 or an FP8 format.
        scale_result: [1], for FP8: the result is codes of the float32 result / scale_result, saturated. None: 1.

    Raises:
        ValueError: shapes do not fit each other.
    """
    if _of_rows(b, scale_b) and _of_rows(a, scale_a):
        result: torch.Tensor = _ops.scaled_mm.default(a, b, scale_a, scale_b, bias, scale_result, out_dtype)
        return result
    if _of_blocks(a, b, scale_a, scale_b):
        return block_scaled_mm(a, b, scale_a, scale_b, bias, out_dtype, scale_result)
    raise _misfit("either", scale_a, scale_b, a, b)


def block_scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    scale_result: torch.Tensor | None = None,
) -> torch.Tensor:
    """The product of a [M, K], a scale for each group of 128 columns, with b [N, K], one for each 128 × 128 block.

    Σ over groups g of (Σ a · b within g) · (scale_a[m, g] · scale_b[n // 128, g]), + bias; sums in float32, and the
    product of the two scales is rounded to float32.

    Args:
        scale_a: [M, ⌈K / 128⌉] float32, row or column major.
        scale_b: [⌈N / 128⌉, ⌈K / 128⌉] float32.
        bias, out_dtype, scale_result: as `scaled_mm` takes them.

    Raises:
        ValueError: shapes do not fit each other.
    """
    result: torch.Tensor = _ops.block_scaled_mm.default(a, b, scale_a, scale_b, bias, scale_result, out_dtype)
    return result
