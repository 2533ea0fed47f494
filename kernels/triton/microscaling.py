"""Blocks of FP8 or FP4 that share a scale of 8 bits, MX and NVFP4, in Triton: encoded and decoded."""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl

from policyquant.kernels.cpu.microscaling import E4M3, LARGEST, LARGEST_EXPONENT, MX_BLOCK, NVFP4_BLOCK, ROUNDING
from policyquant.kernels.triton.encode import SMALLEST_SCALE, finite_magnitude
from policyquant.kernels.triton.launch import launch, target_of
from policyquant.kernels.triton.rows import as_rows
from policyquant.kernels.tuning import configuration

_FAMILY: Final = "microscaling"
_SMALLEST_E4M3: Final = tl.constexpr(2.0**-9)


@triton.jit
def _lines(M, blocks, BLOCK: tl.constexpr, LINES: tl.constexpr):
    """The row, the number in it and the columns of LINES blocks, which follow each other row by row; int64."""
    line = tl.program_id(0).to(tl.int64) * LINES + tl.arange(0, LINES)[:, None]
    row, block = line // blocks, line % blocks
    return row, block, block * BLOCK + tl.arange(0, BLOCK)[None, :], row < M


@triton.jit
def encode_fp4(x):
    """E2M1 codes, int32, of float32; ties to even, what is too large saturates, NaN has code 0."""
    bits = x.to(tl.int32, bitcast=True)
    magnitude = tl.minimum(tl.where(x == x, tl.abs(x), 0.0), 6.0)
    of_magnitude = magnitude.to(tl.int32, bitcast=True)
    # From 1 on: rounded to one bit of mantissa, the bits count codes. Below, 2**22 leaves steps of a half.
    even = ((of_magnitude + 0x1FFFFF + ((of_magnitude >> 22) & 1)) >> 22) - 252
    small = (magnitude + 4194304.0).to(tl.int32, bitcast=True) - 0x4A800000
    codes = tl.where(magnitude < 1.0, small, even)
    return codes | tl.where(x == x, (bits >> 28) & 8, 0)


@triton.jit
def _packed(codes, LINES: tl.constexpr, BLOCK: tl.constexpr):
    """Two codes a byte, the first in the low half."""
    low, high = tl.split(tl.reshape(codes, (LINES, BLOCK // 2, 2)))
    return (low | (high << 4)).to(tl.uint8)


@triton.jit
def decode_fp4(codes):
    """The values of E2M1 codes, int32, in float32: their bits where float32 has exponent and mantissa · 2**126."""
    return (((codes & 7) << 22) | ((codes & 8) << 28)).to(tl.float32, bitcast=True) * (2.0**126)


@triton.jit
def unpacked(packed):
    """Float32 values [A, 2 · B] of packed codes [A, B]."""
    wide = packed.to(tl.int32)
    both = tl.join(decode_fp4(wide & 15), decode_fp4(wide >> 4))
    return tl.reshape(both, (packed.shape[0], 2 * packed.shape[1]))


@triton.jit
def decode_e8m0(stored):
    """2**(stored - 127) in float32, of bytes; 255 is NaN."""
    field = stored.to(tl.int32)
    # 2**-127 is subnormal.
    power = tl.where(field == 0, 0x400000, field << 23)
    return tl.where(field == 255, 0x7FC00000, power).to(tl.float32, bitcast=True)


@triton.jit
def decode_e4m3(stored):
    """The values of E4M3 bytes in float32, on any GPU: their bits · 2**120; NaN is NaN."""
    bits = stored.to(tl.int8, bitcast=True).to(tl.int32)
    value = ((bits << 20) & -0x78100000).to(tl.float32, bitcast=True) * (2.0**120)
    return tl.where((bits & 0x7F) == 0x7F, float("nan"), value)


@triton.jit
def _encode_mx(
    x, out, out_scale, M, K, blocks, stride_x_row, stride_x_column,
    ADDED: tl.constexpr, LARGEST: tl.constexpr, EXPONENT: tl.constexpr, PACKED: tl.constexpr,
    BLOCK: tl.constexpr, LINES: tl.constexpr,
):  # fmt: skip
    """LINES blocks a program. The scale's exponent is that of the largest magnitude, ADDED to its bits, - EXPONENT."""
    row, block, column, there = _lines(M, blocks, BLOCK, LINES)
    mask = there & (column < K)
    value = tl.load(x + row * stride_x_row + column * stride_x_column, mask=mask, other=0.0).to(tl.float32)
    amax = tl.maximum(tl.max(finite_magnitude(value), axis=1, keep_dims=True), 0.0)
    field = tl.maximum(((amax.to(tl.int32, bitcast=True) + ADDED) >> 23) - EXPONENT, 0)
    # The largest field is 253, so the inverse is a normal number, and the product with it is exact.
    scaled = value * ((254 - field) << 23).to(tl.float32, bitcast=True)
    if PACKED:
        nan = tl.max((value != value).to(tl.int32), axis=1, keep_dims=True)
        field = tl.where(nan != 0, 255, field)
        byte = block * (BLOCK // 2) + tl.arange(0, BLOCK // 2)[None, :]
        tl.store(out + row * (K // 2) + byte, _packed(encode_fp4(scaled), LINES, BLOCK), mask=there & (byte < K // 2))
    else:
        codes = tl.clamp(scaled, -LARGEST, LARGEST, propagate_nan=tl.PropagateNan.ALL).to(out.dtype.element_ty)
        tl.store(out + row * K + column, codes, mask=mask)
    tl.store(out_scale + row * blocks + block, field.to(tl.uint8), mask=there)


@triton.jit
def _encode_nvfp4(
    x, global_scale, out, out_scale, M, K, blocks, stride_x_row, stride_x_column,
    BLOCK: tl.constexpr, LINES: tl.constexpr,
):  # fmt: skip
    """LINES blocks a program; divisions are IEEE's."""
    row, block, column, there = _lines(M, blocks, BLOCK, LINES)
    mask = there & (column < K)
    value = tl.load(x + row * stride_x_row + column * stride_x_column, mask=mask, other=0.0).to(tl.float32)
    amax = tl.maximum(tl.max(finite_magnitude(value), axis=1, keep_dims=True), 0.0)
    over_all = tl.maximum(tl.load(global_scale), SMALLEST_SCALE, propagate_nan=tl.PropagateNan.ALL)
    exact = tl.math.div_rn(amax, amax * 0.0 + 6.0 * over_all)
    exact = tl.where(exact == 0.0, 1.0, exact)
    stored = tl.clamp(exact, _SMALLEST_E4M3, 448.0, propagate_nan=tl.PropagateNan.ALL).to(tl.float8e4nv)
    by_block = stored.to(tl.float32) * over_all
    value, divisor = tl.broadcast(value, by_block)
    codes = encode_fp4(tl.math.div_rn(value, divisor))
    nan = tl.max((value != value).to(tl.int32), axis=1, keep_dims=True)
    bits = tl.where(nan != 0, 0x7F, stored.to(tl.uint8, bitcast=True))
    byte = block * (BLOCK // 2) + tl.arange(0, BLOCK // 2)[None, :]
    tl.store(out + row * (K // 2) + byte, _packed(codes, LINES, BLOCK), mask=there & (byte < K // 2))
    tl.store(out_scale + row * blocks + block, bits.to(tl.uint8), mask=there)


@triton.jit
def _decode(
    q, scale, global_scale, out, M, K, blocks, stride_q_row, stride_q_column, stride_scale_row, stride_scale_block,
    PACKED: tl.constexpr, BLOCK: tl.constexpr, LINES: tl.constexpr,
):  # fmt: skip
    """LINES blocks a program; MX where there is no global scale."""
    row, block, column, there = _lines(M, blocks, BLOCK, LINES)
    stored = tl.load(scale + row * stride_scale_row + block * stride_scale_block, mask=there, other=0)
    if global_scale is None:
        by_block = decode_e8m0(stored)
    else:
        by_block = decode_e4m3(stored) * tl.load(global_scale)
    if PACKED:
        byte = block * (BLOCK // 2) + tl.arange(0, BLOCK // 2)[None, :]
        at = q + row * stride_q_row + byte * stride_q_column
        values = unpacked(tl.load(at, mask=there & (byte < K // 2), other=0))
    else:
        at = q + row * stride_q_row + column * stride_q_column
        values = decode_e4m3(tl.load(at, mask=there & (column < K), other=0))
    tl.store(out + row * K + column, (values * by_block).to(out.dtype.element_ty), mask=there & (column < K))


def mxfp8_quant(x: torch.Tensor, scaling_mode: str, *, out: torch.Tensor, out_scale: torch.Tensor) -> None:
    """Codes and a power of two for each block of 32."""
    _mx_quant(x, scaling_mode, out, out_scale)


def mxfp4_quant(x: torch.Tensor, scaling_mode: str, *, out: torch.Tensor, out_scale: torch.Tensor) -> None:
    """The same in E2M1, packed."""
    _mx_quant(x, scaling_mode, out, out_scale)


def _mx_quant(x: torch.Tensor, scaling_mode: str, out: torch.Tensor, out_scale: torch.Tensor) -> None:
    rows = as_rows(x)
    blocks = out_scale.shape[-1]
    tuned = configuration(_FAMILY, target_of(x).capability, "mxfp8" if out.dtype == E4M3 else "mxfp4")
    launch(
        _encode_mx, (triton.cdiv(rows.shape[0] * blocks, tuned["LINES"]),), **tuned,
        x=rows, out=out, out_scale=out_scale.view(torch.uint8), M=rows.shape[0], K=rows.shape[1], blocks=blocks,
        stride_x_row=rows.stride(0), stride_x_column=rows.stride(1), ADDED=ROUNDING[out.dtype][scaling_mode],
        LARGEST=LARGEST[out.dtype], EXPONENT=LARGEST_EXPONENT[out.dtype], PACKED=out.dtype != E4M3, BLOCK=MX_BLOCK,
    )  # fmt: skip


def nvfp4_quant(x: torch.Tensor, global_scale: torch.Tensor, *, out: torch.Tensor, out_scale: torch.Tensor) -> None:
    """Packed codes and an E4M3 scale for each block of 16."""
    rows = as_rows(x)
    blocks = out_scale.shape[-1]
    tuned = configuration(_FAMILY, target_of(x).capability, "nvfp4")
    launch(
        _encode_nvfp4, (triton.cdiv(rows.shape[0] * blocks, tuned["LINES"]),), **tuned,
        x=rows, global_scale=global_scale, out=out, out_scale=out_scale.view(torch.uint8),
        M=rows.shape[0], K=rows.shape[1], blocks=blocks,
        stride_x_row=rows.stride(0), stride_x_column=rows.stride(1), BLOCK=NVFP4_BLOCK,
    )  # fmt: skip


def mx_dequantize(q: torch.Tensor, scale: torch.Tensor, *, out: torch.Tensor) -> None:
    """q · scale of each block of 32."""
    _dequantize(q, scale, None, out, MX_BLOCK)


def nvfp4_dequantize(q: torch.Tensor, scale: torch.Tensor, global_scale: torch.Tensor, *, out: torch.Tensor) -> None:
    """q · (scale · global_scale) of each block of 16."""
    _dequantize(q, scale, global_scale, out, NVFP4_BLOCK)


def _dequantize(q: torch.Tensor, scale: torch.Tensor, global_scale: Any, out: torch.Tensor, block: int) -> None:
    codes, scales = as_rows(q).view(torch.uint8), as_rows(scale).view(torch.uint8)
    (m, blocks), k = scales.shape, out.shape[-1]
    tuned = configuration(_FAMILY, target_of(q).capability, "decode")
    launch(
        _decode, (triton.cdiv(m * blocks, tuned["LINES"]),), **tuned,
        q=codes, scale=scales, global_scale=global_scale, out=out, M=m, K=k, blocks=blocks,
        stride_q_row=codes.stride(0), stride_q_column=codes.stride(1),
        stride_scale_row=scales.stride(0), stride_scale_block=scales.stride(1), PACKED=q.dtype != E4M3, BLOCK=block,
    )  # fmt: skip
