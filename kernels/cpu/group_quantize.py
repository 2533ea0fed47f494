"""Encoding to FP8 with a scale for each group along a row or for each block of a weight, and back, in plain torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch.nn.functional import pad

from policyquant.kernels.cpu import quantize
from policyquant.kernels.scale_layouts import to_mn_major

GROUP_SIZES: Final = (32, 64, 128)


def group_shape(x: torch.Tensor, group_size: int) -> tuple[int, ...]:
    """The shape of the scales of x [..., K].

    Raises:
        ValueError: groups of this size are not known, or x is a number.
    """
    if group_size not in GROUP_SIZES:
        raise ValueError(f"group_size is one of {', '.join(map(str, GROUP_SIZES))}; found {group_size}")
    if x.ndim == 0:
        raise ValueError("a tensor with groups has at least one dimension, found none")
    return (*x.shape[:-1], -(-x.shape[-1] // group_size))


def block_shape(w: torch.Tensor, block: Sequence[int]) -> tuple[int, ...]:
    """The shape of the scales of w [..., N, K].

    Raises:
        ValueError: a block is not two positive sizes, or w has no rows and columns.
    """
    if len(block) != 2 or min(block) < 1:
        raise ValueError(f"a block is two positive sizes, rows and columns; found {list(block)}")
    if w.ndim < 2:
        raise ValueError(f"a tensor with blocks is [..., N, K], found {list(w.shape)}")
    return (*w.shape[:-2], -(-w.shape[-2] // block[0]), -(-w.shape[-1] // block[1]))


def group_fp8_quant(
    x: torch.Tensor, group_size: int, column_major: bool, power_of_two: bool, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and a scale for each `group_size` elements of a row."""
    shape = group_shape(x, group_size)
    groups = pad(x, (0, -x.shape[-1] % group_size)).reshape(*shape, group_size)
    codes, scale = _encoded(groups, power_of_two, dtype)
    scale = scale.squeeze(-1)
    codes = codes.view(torch.uint8).reshape(*x.shape[:-1], shape[-1] * group_size)[..., : x.shape[-1]]
    return codes.contiguous().view(dtype), to_mn_major(scale) if column_major else scale


def block_fp8_quant(
    w: torch.Tensor, block: Sequence[int], power_of_two: bool, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and a scale for each block of rows and columns."""
    *batch, down, across = block_shape(w, block)
    n, k = w.shape[-2:]
    full = pad(w, (0, -k % block[1], 0, -n % block[0])).reshape(*batch, down, block[0], across, block[1])
    blocks = full.transpose(-3, -2).reshape(*batch, down, across, block[0] * block[1])
    codes, scale = _encoded(blocks, power_of_two, dtype)
    codes = codes.view(torch.uint8).reshape(*batch, down, across, block[0], block[1]).transpose(-3, -2)
    codes = codes.reshape(*batch, down * block[0], across * block[1])[..., :n, :k]
    return codes.contiguous().view(dtype), scale.squeeze(-1)


def dequantize_blocks(q: torch.Tensor, scale: torch.Tensor, block: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """q · scale in float32, rounded once to `dtype`.

    Raises:
        ValueError: scale has another shape than `block` says.
    """
    check_scale(q, scale, block)
    every = scale.repeat_interleave(block[0], dim=-2)[..., : q.shape[-2], :]
    every = every.repeat_interleave(block[1], dim=-1)[..., : q.shape[-1]]
    return quantize.dequantize(q, every, dtype).contiguous()


def check_scale(q: torch.Tensor, scale: torch.Tensor, block: Sequence[int]) -> None:
    """Raises ValueError if these are not the scales of q."""
    expected = block_shape(q, block)
    if tuple(scale.shape) != expected:
        raise ValueError(
            f"scales of {list(q.shape)} in blocks of {list(block)} are {list(expected)}, found {list(scale.shape)}"
        )


def _encoded(groups: torch.Tensor, power_of_two: bool, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales [..., 1] of the last dimension."""
    if not power_of_two:
        return quantize.per_token_scaled_fp8_quant(groups, None, dtype)
    scale = next_power_of_two(quantize.fp8_scale(quantize.largest_finite(groups), None, dtype))
    return quantize.static_scaled_fp8_quant(groups, scale, dtype), scale


def next_power_of_two(scale: torch.Tensor) -> torch.Tensor:
    """The least power of two that is not below a normal float32, by its bits; at most 2**127."""
    bits = (scale.view(torch.int32) + 0x7FFFFF).bitwise_and_(0x7F800000).clamp_(max=0x7F000000)
    return bits.view(torch.float32)
