"""Products with 4-bit weights and activations as they are, in plain torch: tiles of rows are decoded to float32."""

from __future__ import annotations

import torch

from policyquant.kernels.cpu.int4_quantize import check_group_size
from policyquant.kernels.cpu.scaled_mm import TILE_ELEMENTS
from policyquant.kernels.int4_layout import ZERO, unpack

_SCALES = (torch.float32, torch.bfloat16, torch.float16)


def check(
    x: torch.Tensor,
    packed: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor | None,
    group_size: int,
    bias: torch.Tensor | None,
) -> None:
    """Refuse what does not belong together.

    Raises:
        ValueError: a shape or a dtype is not as `int4_weight_only_mm` says.
    """
    name = "int4_weight_only_mm"
    check_group_size(group_size)
    if packed.dtype != torch.uint8:
        raise ValueError(f"{name}: packed is {packed.dtype}, expected uint8")
    if x.ndim != 2 or packed.ndim != 2 or packed.shape[1] != -(-x.shape[1] // 2):
        found = f"x is {list(x.shape)} and packed {list(packed.shape)}"
        raise ValueError(f"{name}: {found}, expected [M, K] and [N, ceil(K / 2)]")
    expected = (packed.shape[0], -(-x.shape[1] // group_size))
    if tuple(scale.shape) != expected or scale.dtype not in _SCALES:
        found = f"{list(scale.shape)} {scale.dtype}"
        raise ValueError(f"{name}: the scale is {found}, expected {list(expected)} in float32, bfloat16 or float16")
    if zero_point is not None and (tuple(zero_point.shape) != expected or zero_point.dtype != torch.uint8):
        found = f"{list(zero_point.shape)} {zero_point.dtype}"
        raise ValueError(f"{name}: the zero point is {found}, expected {list(expected)} uint8")
    if bias is not None and tuple(bias.shape) != (packed.shape[0],):
        raise ValueError(f"{name}: the bias is {list(bias.shape)}, expected [{packed.shape[0]}]")


def int4_weight_only_mm(
    x: torch.Tensor,
    packed: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor | None,
    group_size: int,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """x @ ((code - zero point) · scale).T + bias, rounded once to `out_dtype`."""
    check(x, packed, scale, zero_point, group_size, bias)
    wide = x.float()
    sums = torch.empty((x.shape[0], packed.shape[0]), dtype=torch.float32, device=x.device)
    rows = max(1, TILE_ELEMENTS // max(1, x.shape[1]))
    for start in range(0, packed.shape[0], rows):
        part = slice(start, start + rows)
        zero = None if zero_point is None else zero_point[part]
        sums[:, part] = wide @ decoded(packed[part], scale[part], zero, group_size, x.shape[1]).T
    return (sums if bias is None else sums.add_(bias.float())).to(out_dtype)


def decoded(
    packed: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor | None, group_size: int, columns: int
) -> torch.Tensor:
    """(code - zero point) · scale in float32, [..., columns]."""
    codes = unpack(packed, columns).float()
    if zero_point is None:
        codes.sub_(ZERO)
    else:
        codes.sub_(zero_point.repeat_interleave(group_size, -1)[..., :columns])
    return codes.mul_(scale.float().repeat_interleave(group_size, -1)[..., :columns])
