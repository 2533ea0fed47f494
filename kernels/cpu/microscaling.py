"""Blocks of FP8 or FP4 that share a scale of 8 bits, MX and NVFP4, in plain torch: encoded and decoded."""

from __future__ import annotations

from typing import Final

import torch
from torch.nn.functional import pad

from policyquant.kernels.cpu.quantize import SMALLEST_SCALE, largest_finite

MX_BLOCK: Final = 32
NVFP4_BLOCK: Final = 16
E4M3: Final = torch.float8_e4m3fn
E8M0: Final = torch.float8_e8m0fnu
LARGEST: Final = {E4M3: 448.0, torch.uint8: 6.0}
"""The largest value of E4M3, and of E2M1, whose codes lie two in a byte."""
SMALLEST_E4M3: Final = 2.0**-9

ROUNDING: Final = {
    E4M3: {"floor": 0, "even": 1 << 19, "rceil": 0x1FFFFF},
    torch.uint8: {"floor": 0, "even": 1 << 21, "rceil": 0x3FFFFF},
}
"""What is added to the bits of a float32 before its exponent is read. Rounding up, 0x7FFFFF less the mantissa of the
format's largest value: just what lies beyond it carries."""
LARGEST_EXPONENT: Final = {E4M3: 8, torch.uint8: 2}
"""floor(log2) of the format's largest value."""

_TILE_ELEMENTS: Final = 1 << 22
"""Encoded at a time, so that what is needed on the way stays small."""
_HALF_BITS: Final = -29184  # 0x8E00: sign, two bits of exponent, one of mantissa.
_NAN_E8M0: Final = 0xFF
_NAN_E4M3: Final = 0x7F


def check_mode(scaling_mode: str) -> None:
    """Raises ValueError for a rule that is not known."""
    if scaling_mode not in ROUNDING[E4M3]:
        raise ValueError(f"scaling_mode is one of {', '.join(ROUNDING[E4M3])}; found {scaling_mode!r}")


def block_shape(x: torch.Tensor, block: int, packed: bool) -> tuple[int, ...]:
    """The shape of the scales of x [..., K].

    Raises:
        ValueError: x is a number, or its codes are packed two a byte and K is odd.
    """
    if x.ndim == 0:
        raise ValueError("a tensor with blocks has at least one dimension, found none")
    if packed and x.shape[-1] % 2:
        raise ValueError(f"FP4 codes lie two in a byte, so K is even; found {x.shape[-1]}")
    return (*x.shape[:-1], -(-x.shape[-1] // block))


def decoded_shape(q: torch.Tensor, scale: torch.Tensor, block: int) -> tuple[int, ...]:
    """The shape of what E4M3 codes or packed E2M1 codes, and their scales, stand for.

    Raises:
        ValueError: q holds neither, or scale has another shape than blocks of q have.
    """
    if q.dtype not in LARGEST or (q.dtype == E4M3 and block == NVFP4_BLOCK):
        expected = "torch.uint8" if block == NVFP4_BLOCK else "torch.float8_e4m3fn or torch.uint8"
        raise ValueError(f"codes are {q.dtype}, expected {expected}")
    if q.ndim == 0:
        raise ValueError("codes with blocks have at least one dimension, found none")
    columns = q.shape[-1] * (2 if q.dtype == torch.uint8 else 1)
    expected_scale = (*q.shape[:-1], -(-columns // block))
    kinds = (E4M3,) if block == NVFP4_BLOCK else (E8M0, torch.uint8)
    if tuple(scale.shape) != expected_scale or scale.dtype not in kinds:
        raise ValueError(
            f"scales of {list(q.shape)} {q.dtype} are {list(expected_scale)} {' or '.join(map(str, kinds))}, found"
            f" {list(scale.shape)} {scale.dtype}"
        )
    return (*q.shape[:-1], columns)


def mxfp8_quant(x: torch.Tensor, scaling_mode: str) -> tuple[torch.Tensor, torch.Tensor]:
    """E4M3 codes and a power of two for each 32 elements of a row."""
    check_mode(scaling_mode)
    shape = block_shape(x, MX_BLOCK, packed=False)
    codes = torch.empty(x.shape, dtype=E4M3, device=x.device)
    scale = torch.empty(shape, dtype=E8M0, device=x.device)
    into, stored = _rows(codes), _rows(scale.view(torch.uint8))
    for rows, blocks in _tiles(x, MX_BLOCK):
        exponents, scaled = _scaled_mx(blocks, E4M3, scaling_mode)
        stored[rows] = exponents
        into[rows].copy_(scaled.flatten(-2)[..., : x.shape[-1]])
    return codes, scale


def mxfp4_quant(x: torch.Tensor, scaling_mode: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Packed E2M1 codes and a power of two for each 32 elements of a row; NaN where one of them is NaN."""
    check_mode(scaling_mode)
    shape = block_shape(x, MX_BLOCK, packed=True)
    codes = torch.empty((*x.shape[:-1], x.shape[-1] // 2), dtype=torch.uint8, device=x.device)
    scale = torch.empty(shape, dtype=E8M0, device=x.device)
    into, stored = _rows(codes), _rows(scale.view(torch.uint8))
    for rows, blocks in _tiles(x, MX_BLOCK):
        exponents, scaled = _scaled_mx(blocks, torch.uint8, scaling_mode)
        stored[rows] = exponents.masked_fill_(blocks.isnan().any(-1), _NAN_E8M0)
        into[rows] = _packed(scaled.flatten(-2)[..., : x.shape[-1]])
    return codes, scale


def nvfp4_global_scale(x: torch.Tensor) -> torch.Tensor:
    """[1] float32: the largest finite magnitude / (448 · 6), at least 2**-126."""
    largest = largest_finite(x.reshape(-1))
    return (largest / torch.full_like(largest, LARGEST[E4M3] * LARGEST[torch.uint8])).clamp_(min=SMALLEST_SCALE)


def nvfp4_quant(x: torch.Tensor, global_scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Packed E2M1 codes and an E4M3 scale for each 16 elements of a row; NaN where one of them is NaN."""
    check_global_scale(global_scale)
    shape = block_shape(x, NVFP4_BLOCK, packed=True)
    codes = torch.empty((*x.shape[:-1], x.shape[-1] // 2), dtype=torch.uint8, device=x.device)
    scale = torch.empty(shape, dtype=E4M3, device=x.device)
    into, stored = _rows(codes), _rows(scale.view(torch.uint8))
    over_all = global_scale.reshape(()).clamp(min=SMALLEST_SCALE)
    for rows, blocks in _tiles(x, NVFP4_BLOCK):
        exact = largest_finite(blocks).squeeze(-1).div_(LARGEST[torch.uint8] * over_all)
        exact = exact.masked_fill_(exact == 0, 1.0).clamp_(SMALLEST_E4M3, LARGEST[E4M3])
        rounded = exact.to(E4M3)
        by_block = rounded.float().mul_(over_all)
        stored[rows] = rounded.view(torch.uint8).masked_fill_(blocks.isnan().any(-1), _NAN_E4M3)
        scaled = blocks.to(torch.float32, copy=True).div_(by_block.unsqueeze(-1))
        into[rows] = _packed(scaled.flatten(-2)[..., : x.shape[-1]])
    return codes, scale


def mx_dequantize(q: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """q · scale in float32, rounded once to `dtype`."""
    shape = decoded_shape(q, scale, MX_BLOCK)
    return decode_mx(_rows(q), _rows(scale)).to(dtype).reshape(shape)


def nvfp4_dequantize(
    q: torch.Tensor, scale: torch.Tensor, global_scale: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """q · (scale · global_scale), each product in float32, rounded once to `dtype`."""
    check_global_scale(global_scale)
    shape = decoded_shape(q, scale, NVFP4_BLOCK)
    by_block = _rows(scale).float().mul_(global_scale.reshape(()))
    return times_blocks(decode_elements(_rows(q)), by_block, NVFP4_BLOCK).to(dtype).reshape(shape)


def check_global_scale(global_scale: torch.Tensor) -> None:
    """Raises ValueError if it is not one float32."""
    if global_scale.numel() != 1 or global_scale.dtype != torch.float32:
        raise ValueError(
            f"the global scale is [1] torch.float32, found {list(global_scale.shape)} {global_scale.dtype}"
        )


def decode_mx(q: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Float32 values [N, K] of E4M3 codes [N, K] or packed E2M1 codes [N, K / 2] with scales of 32."""
    return times_blocks(decode_elements(q), scale.view(E8M0).float(), MX_BLOCK)


def decode_elements(q: torch.Tensor) -> torch.Tensor:
    """Float32 values of E4M3 codes, or of E2M1 codes packed two a byte: [..., K / 2] to [..., K]."""
    if q.dtype == E4M3:
        return q.float()
    signed = q.view(torch.int8)
    # Each code in the upper half of a byte, its sign on top, and from there to where float16 has sign, exponent and
    # mantissa. The bits mean value · 2**-14 there, 0.5 being subnormal.
    halves = torch.stack((signed << 4, signed & -16), dim=-1).flatten(-2)
    bits = halves.to(torch.int16).mul_(32).bitwise_and_(_HALF_BITS)
    return bits.view(torch.float16).float().mul_(2.0**14)


def times_blocks(values: torch.Tensor, scale: torch.Tensor, block: int) -> torch.Tensor:
    """values [N, K] times a scale [N, ceil(K / block)] of each block of a row, in place."""
    whole = values.shape[-1] // block
    values[:, : whole * block].view(len(values), whole, block).mul_(scale[:, :whole, None])
    if whole < scale.shape[-1]:
        values[:, whole * block :].mul_(scale[:, whole:])
    return values


def _rows(x: torch.Tensor) -> torch.Tensor:
    """[..., K] as [M, K]."""
    rows = 1
    for size in x.shape[:-1]:
        rows *= size
    return x.reshape(rows, x.shape[-1])


def _tiles(x: torch.Tensor, block: int) -> list[tuple[slice, torch.Tensor]]:
    """Some rows at a time, [rows, blocks, block]; zeros fill the last block."""
    values = _rows(x)
    step = max(1, _TILE_ELEMENTS // max(1, values.shape[1]))
    missing = -values.shape[1] % block
    tiles = []
    for start in range(0, values.shape[0], step):
        part = values[start : start + step]
        whole = pad(part, (0, missing)) if missing else part
        tiles.append((slice(start, start + step), whole.view(len(whole), whole.shape[1] // block, block)))
    return tiles


def _scaled_mx(blocks: torch.Tensor, kind: torch.dtype, scaling_mode: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Biased exponents of the scales [rows, blocks], uint8, and x over them, clamped to the format's range."""
    bits = largest_finite(blocks).squeeze(-1).view(torch.int32)
    field = ((bits + ROUNDING[kind][scaling_mode]) >> 23).sub_(LARGEST_EXPONENT[kind]).clamp_(min=0)
    # The largest field is 253, so the inverse is a normal number, and the product with it is exact.
    inverse = ((254 - field) << 23).view(torch.float32).unsqueeze(-1)
    scaled = blocks.to(torch.float32, copy=True).mul_(inverse).clamp_(-LARGEST[kind], LARGEST[kind])
    return field.to(torch.uint8), scaled


def _packed(x: torch.Tensor) -> torch.Tensor:
    """E2M1 codes of float32 [rows, K], two a byte; ties to even, NaN has code 0. `x` is overwritten."""
    sign = x.signbit().logical_and_(~x.isnan())
    magnitude = x.abs_().nan_to_num_(nan=0.0, posinf=6.0).clamp_(max=6.0)
    bits = magnitude.view(torch.int32)
    # From 1 on: rounded to one bit of mantissa, the bits count codes. Below, 2**22 leaves steps of a half.
    even = (bits >> 22).bitwise_and_(1).add_(bits).add_(0x1FFFFF).bitwise_right_shift_(22).sub_(252)
    small = (magnitude + 2.0**22).view(torch.int32).sub_(0x4A800000)
    codes = torch.where(magnitude < 1.0, small, even).add_(sign, alpha=8).to(torch.uint8)
    return codes[..., ::2] | (codes[..., 1::2] << 4)
