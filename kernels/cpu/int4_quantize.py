"""Encoding of weights to 4 bits, in plain torch."""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from policyquant.kernels.cpu.int8_quantize import extremes
from policyquant.kernels.cpu.quantize import SMALLEST_SCALE, largest_finite
from policyquant.kernels.int4_layout import GROUP_SIZES, ZERO, pack

_HALF_RANGE = 7.5
"""Half of the range of 15 steps, -8 to 7: the divisor of compressed-tensors."""


def shape_of_groups(w: torch.Tensor, group_size: int, scale_dtype: torch.dtype) -> tuple[int, ...]:
    """The shape of the scales of w [..., K].

    Raises:
        ValueError: groups of this size, or scales of this dtype, are not known, or w is a number.
    """
    check_group_size(group_size)
    if scale_dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"scales of 4-bit codes are float32 or bfloat16, found {scale_dtype}")
    if w.ndim == 0:
        raise ValueError("a tensor with groups has at least one dimension, found none")
    return (*w.shape[:-1], -(-w.shape[-1] // group_size))


def check_group_size(group_size: int) -> None:
    """Raises ValueError unless it is one of `GROUP_SIZES`."""
    if group_size not in GROUP_SIZES:
        raise ValueError(f"group_size is one of {', '.join(map(str, GROUP_SIZES))}; found {group_size}")


def int4_group_quant(w: torch.Tensor, group_size: int, scale_dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Packed codes and a scale for each group."""
    groups = _groups(w, group_size, scale_dtype)
    largest = largest_finite(groups)
    scale = (largest / torch.full_like(largest, _HALF_RANGE)).clamp_(min=SMALLEST_SCALE).to(scale_dtype)
    codes = _quotients(groups, scale).round_().clamp_(-8, 7)
    return _packed(codes, w.shape[-1]), scale.squeeze(-1)


def asymmetric_int4_group_quant(
    w: torch.Tensor, group_size: int, scale_dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Packed codes, a scale and a zero point for each group."""
    groups = _groups(w, group_size, scale_dtype)
    low, high = extremes(groups)
    width = (high - low).clamp_(max=torch.finfo(torch.float32).max)
    scale = (width / torch.full_like(width, 15.0)).clamp_(min=SMALLEST_SCALE).to(scale_dtype)
    zero_point = (-8.0 - low / scale.float()).clamp_(-8, 7).round_()
    codes = _quotients(groups, scale).add_(zero_point).round_().clamp_(-8, 7)
    return _packed(codes, w.shape[-1]), scale.squeeze(-1), zero_point.add_(ZERO).to(torch.uint8).squeeze(-1)


def _groups(w: torch.Tensor, group_size: int, scale_dtype: torch.dtype) -> torch.Tensor:
    """[..., groups, group_size], the last filled up with zeros."""
    shape = shape_of_groups(w, group_size, scale_dtype)
    return pad(w, (0, -w.shape[-1] % group_size)).reshape(*shape, group_size)


def _quotients(groups: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return groups.to(torch.float32, copy=True).div_(scale.float()).nan_to_num_(nan=0.0)


def _packed(codes: torch.Tensor, columns: int) -> torch.Tensor:
    return pack((codes + ZERO).to(torch.uint8).flatten(-2)[..., :columns])
