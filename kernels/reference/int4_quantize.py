"""Encoding of weights to 4 bits, with a scale for each group along a row, and a zero point if asked for.

Codes are packed as `policyquant.kernels.int4_layout` says; here they are put in their places one by one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from policyquant.kernels.reference.formats import SMALLEST_SCALE, quotient, scales

_ZERO = 8


def int4_group_quant(
    w: torch.Tensor, group_size: int = 128, scale_dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor]:
    """Packed codes of w [..., K], and scales [..., ⌈K / group_size⌉]: largest finite magnitude / 7.5, then rounded.

    Codes are w / scale to the nearest integer of [-8, 7], ties to even, plus 8. NaN counts as zero.
    """
    scale = _groups_of(w, group_size, lambda part: scales(part, 7.5)).to(scale_dtype)
    quotients = quotient(w, _spread(scale, group_size, w)).nan_to_num(nan=0.0)
    return packed(quotients.round().clamp(-8, 7).long() + _ZERO), scale


def asymmetric_int4_group_quant(
    w: torch.Tensor, group_size: int = 128, scale_dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Packed codes of w [..., K], scales and zero points (uint8) [..., ⌈K / group_size⌉].

    A scale is (largest - smallest finite element) / 15, zero among them, rounded to float32 as a difference, at most
    the largest float32, and as a quotient, then to its dtype. The zero point is -8 - smallest / scale to the nearest
    integer of [-8, 7], and a code w / scale + zero point to the nearest such integer; all three are rounded to float32
    after each step, and 8 is added to both.
    """
    low = _groups_of(w, group_size, lambda part: _finite(part).amin(-1, keepdim=True))
    high = _groups_of(w, group_size, lambda part: _finite(part).amax(-1, keepdim=True))
    width = (high - low).float().clamp(max=torch.finfo(torch.float32).max)
    scale = (width.double() / 15).float().clamp(min=SMALLEST_SCALE).to(scale_dtype)
    zero_point = (-8 - quotient(low, scale)).float().clamp(-8, 7).round()
    quotients = quotient(w, _spread(scale, group_size, w)).nan_to_num(nan=0.0)
    shifted = (quotients + _spread(zero_point, group_size, w).double()).float()
    return packed(shifted.round().clamp(-8, 7).long() + _ZERO), scale, (zero_point + _ZERO).to(torch.uint8)


def packed(codes: torch.Tensor) -> torch.Tensor:
    """[..., ⌈K / 2⌉] uint8: an even column in the lower half of its byte, an odd one in the upper."""
    out = torch.zeros(*codes.shape[:-1], -(-codes.shape[-1] // 2), dtype=torch.long, device=codes.device)
    for column in range(codes.shape[-1]):
        out[..., column // 2] += codes[..., column] * (1 if column % 2 == 0 else 16)
    return out.to(torch.uint8)


def unpacked(q: torch.Tensor, columns: int) -> torch.Tensor:
    """Codes of 0 to 15, [..., columns] int64."""
    out = torch.zeros(*q.shape[:-1], columns, dtype=torch.long, device=q.device)
    for column in range(columns):
        out[..., column] = q[..., column // 2].long() // (1 if column % 2 == 0 else 16) % 16
    return out


def _finite(part: torch.Tensor) -> torch.Tensor:
    """Its finite elements, and a zero beside each row."""
    values = torch.where(part.isfinite(), part, 0).double()
    return torch.cat((values, values.new_zeros(*part.shape[:-1], 1)), dim=-1)


def _groups_of(w: torch.Tensor, group_size: int, measure: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """What `measure` gives for each group, [..., ⌈K / group_size⌉]."""
    found = [measure(w[..., start : start + group_size]) for start in range(0, w.shape[-1], group_size)]
    return torch.cat(found, dim=-1) if found else w.new_zeros(*w.shape[:-1], 0, dtype=torch.float32)


def _spread(values: torch.Tensor, group_size: int, w: torch.Tensor) -> torch.Tensor:
    """Each group's value at each of its columns."""
    return values.repeat_interleave(group_size, dim=-1)[..., : w.shape[-1]]
