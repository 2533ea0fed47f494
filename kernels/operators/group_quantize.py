"""Encoding to FP8 with a scale for each group along a row or for each block of a weight, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from policyquant.kernels import dispatch
from policyquant.kernels.cpu import group_quantize as plain
from policyquant.kernels.operators.refusals import more_dimensions, other_than_floats
from policyquant.kernels.registration import CODES, define, like
from policyquant.kernels.scale_layouts import empty_scales

_ops: Any = torch.ops.policyquant

_MOST_IN_A_BLOCK = 32768


def _groups(
    x: torch.Tensor, group_size: int, column_major: bool, power_of_two: bool, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = plain.group_shape(x, group_size)
    return like(x, tuple(x.shape), dtype), empty_scales(x, shape, column_major, torch.float32)


def _blocks(
    w: torch.Tensor, block: Sequence[int], power_of_two: bool, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    return like(w, tuple(w.shape), dtype), like(w, plain.block_shape(w, block), torch.float32)


def _decoded(q: torch.Tensor, scale: torch.Tensor, block: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    plain.check_scale(q, scale, block)
    return like(q, tuple(q.shape), dtype)


def _refuses(on: dispatch.Machine, x: torch.Tensor, *rest: Any, **outs: Any) -> str | None:
    return other_than_floats(x)


def _refuses_cuda(on: dispatch.Machine, x: torch.Tensor, *rest: Any, **outs: Any) -> str | None:
    return other_than_floats(x) or more_dimensions(x)


def _refuses_block(on: dispatch.Machine, w: torch.Tensor, block: Sequence[int], *rest: Any, **outs: Any) -> str | None:
    return _refuses(on, w) or _uneven(block)


def _refuses_decoding(
    on: dispatch.Machine, q: torch.Tensor, scale: torch.Tensor, block: Sequence[int], *, out: torch.Tensor
) -> str | None:
    if scale.dtype != torch.float32:
        return f"it takes float32 scales, found {scale.dtype}"
    return _uneven(block[1:]) or _refuses(on, out)


def _uneven(block: Sequence[int]) -> str | None:
    size = 1
    for each in block:
        size *= each
    if any(each & (each - 1) for each in block) or size > _MOST_IN_A_BLOCK:
        return f"it takes blocks of powers of two, of at most {_MOST_IN_A_BLOCK} elements, found {list(block)}"
    return None


define(
    "group_fp8_quant",
    "Tensor x, int group_size, bool column_major, bool power_of_two, ScalarType dtype",
    CODES,
    plain.group_fp8_quant,
    _groups,
    "dtype",
    implementations=(
        dispatch.cuda("group_fp8_quant", refuses=_refuses_cuda),
        dispatch.triton("group_quantize", "group_fp8_quant", refuses=_refuses),
    ),
)
define(
    "block_fp8_quant",
    "Tensor w, int[] block, bool power_of_two, ScalarType dtype",
    CODES,
    plain.block_fp8_quant,
    _blocks,
    "dtype",
    implementations=(dispatch.triton("group_quantize", "block_fp8_quant", refuses=_refuses_block),),
)
define(
    "dequantize_blocks",
    "Tensor q, Tensor scale, int[] block, ScalarType dtype",
    {"out": "a"},
    plain.dequantize_blocks,
    _decoded,
    "dtype",
    implementations=(dispatch.triton("group_quantize", "dequantize_blocks", refuses=_refuses_decoding),),
)


def group_fp8_quant(
    x: torch.Tensor,
    group_size: int = 128,
    column_major: bool = False,
    power_of_two: bool = False,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of x [..., K] and a float32 scale for each group along a row, [..., ceil(K / group_size)].

    A scale is largest finite magnitude / largest value of dtype, at least 2**-126. The last group may be shorter.

    Args:
        x: float32, bfloat16 or float16.
        group_size: 32, 64 or 128.
        column_major: scales of M rows have strides (1, round_up(M, 4)), as `scale_layouts` says.
        power_of_two: a scale is rounded up to a power of two before it is used.
        dtype: float8_e4m3fn or float8_e5m2.

    Raises:
        ValueError: another group size.
    """
    result: tuple[torch.Tensor, torch.Tensor] = _ops.group_fp8_quant.default(
        x, group_size, column_major, power_of_two, dtype
    )
    return result


def block_fp8_quant(
    w: torch.Tensor,
    block: Sequence[int] = (128, 128),
    power_of_two: bool = False,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of w [..., N, K] and a float32 scale for each block, [..., ceil(N / block[0]), ceil(K / block[1])].

    Raises:
        ValueError: a block is not two positive sizes.
    """
    result: tuple[torch.Tensor, torch.Tensor] = _ops.block_fp8_quant.default(w, list(block), power_of_two, dtype)
    return result


def dequantize_blocks(
    q: torch.Tensor, scale: torch.Tensor, block: Sequence[int] = (128, 128), dtype: torch.dtype = torch.bfloat16
) -> torch.Tensor:
    """q · scale, rounded once to dtype, of codes [..., N, K]. Groups of 128 along a row are blocks (1, 128).

    Raises:
        ValueError: scale is not [..., ceil(N / block[0]), ceil(K / block[1])].
    """
    result: torch.Tensor = _ops.dequantize_blocks.default(q, scale, list(block), dtype)
    return result


def check_scales(
    what: str,
    scale: torch.Tensor | None,
    group_size: int | None,
    column_major: bool,
    power_of_two: bool,
    scale_ub: float | None,
) -> None:
    """Refuse what contradicts itself: a scale is given, or groups have scales, or rows have, up to a bound.

    Raises:
        ValueError: it does.
    """
    if scale is not None and group_size is not None:
        raise ValueError(f"{what} takes a scale or a group_size, found both")
    if scale_ub is not None and (scale is not None or group_size is not None):
        raise ValueError(f"{what}: scale_ub bounds the scales of rows; found a scale or a group_size beside it")
    if (column_major or power_of_two) and group_size is None:
        raise ValueError(f"{what}: column_major and power_of_two are for the scales of groups; found no group_size")
