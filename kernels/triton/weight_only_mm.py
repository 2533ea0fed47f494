"""Products of activations as they are with 8-bit weights, in Triton.

The weight is the left operand of the matrix instruction, so that 64 of its rows meet as few as 16 activations, and so
that decoded codes go from registers into the instruction. A tile is out.T: BLOCK_N rows of the weight by BLOCK_M rows
of x. Where the tiles are too few for the GPU, K is split, and the parts are added in order by a second kernel.

Codes become numbers of the activations' dtype, exactly: by the GPU's own conversion from compute capability 8.9 on,
by their bits before. The bits of an E4M3 code, moved to the exponent and mantissa of float32, are its value · 2**-120,
subnormal values included; moved to those of float16, its value · 2**-8, and 2**8 is multiplied by the sums.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from policyquant.kernels.cpu.weight_only_mm import BLOCK, by_block
from policyquant.kernels.triton.launch import Target, launch, target_of
from policyquant.kernels.tuning import configuration

_FAMILY: Final = "weight_only_mm"
_FORMATS: Final = {torch.float8_e4m3fn: "e4m3fn", torch.float8_e5m2: "e5m2", torch.int8: "int8"}
_HAS_FP8: Final = (8, 9)
_HAS_BULK_COPIES: Final = (9, 0)
_SCALE_BLOCK: Final = tl.constexpr(BLOCK)


@triton.jit
def _widened(half, dtype: tl.constexpr):
    """A float16 in another dtype; not straight to bfloat16, which is slow on compute capability 9.0."""
    return half if dtype == tl.float16 else half.to(tl.float32).to(dtype)


@triton.jit
def _decode(codes, FORMAT: tl.constexpr, dtype: tl.constexpr, BY_BITS: tl.constexpr):
    """The values of codes (uint8), of E4M3 by bits in float16: · 2**-8."""
    if FORMAT == "int8":
        # The bits of 2**23 + 128 + code.
        shifted = (codes.to(tl.int32) ^ 0x4B000080).to(tl.float32, bitcast=True)
        value = (shifted - 8388736.0).to(dtype)
    elif not BY_BITS:
        own: tl.constexpr = tl.float8e4nv if FORMAT == "e4m3fn" else tl.float8e5
        value = _widened(codes.to(own, bitcast=True).to(tl.float16), dtype)
    elif FORMAT == "e5m2":
        # The upper half of a float16.
        value = _widened((codes.to(tl.int16) << 8).to(tl.float16, bitcast=True), dtype)
    elif dtype == tl.float16:
        bits = codes.to(tl.int8, bitcast=True).to(tl.int16)
        value = ((bits << 7) & -0x4001).to(tl.float16, bitcast=True)
    else:
        bits = codes.to(tl.int8, bitcast=True).to(tl.int32)
        value = (((bits << 20) & -0x78100000).to(tl.float32, bitcast=True) * (2.0**120)).to(dtype)
    return value


@triton.jit
def _scaled(sums, scale, bias, rows, N, stride_scale_row, stride_bias, SCALES: tl.constexpr):
    """Sums [rows of the weight, rows of x] times the weight's scale, unless blocks had theirs, plus the bias."""
    if SCALES == "tensor":
        sums = sums * tl.load(scale)
    elif SCALES == "row":
        sums = sums * tl.load(scale + rows * stride_scale_row, mask=rows < N, other=0.0)[:, None]
    if bias is not None:
        sums = sums + tl.load(bias + rows * stride_bias, mask=rows < N, other=0.0).to(tl.float32)[:, None]
    return sums


@triton.jit
def _multiply(
    x, q, scale, bias, out, M, N, K, K_OF_PART,
    stride_x_row, stride_x_column, stride_q_row, stride_q_column, stride_scale_row, stride_scale_column, stride_bias,
    FORMAT: tl.constexpr, BY_BITS: tl.constexpr, RESCALE: tl.constexpr, SCALES: tl.constexpr, BULK: tl.constexpr,
    PARTS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """One tile of one part of K. `q` is a descriptor if BULK; `out` takes float32 parts [PARTS, M, N] if PARTS > 1."""
    tl.static_assert(_SCALE_BLOCK % BLOCK_K == 0)
    tl.static_assert(_SCALE_BLOCK % BLOCK_N == 0)
    # Programs that follow each other share the weight's rows, and GROUP_M tiles of x stay in the cache.
    tile, part = tl.program_id(0), tl.program_id(1)
    tiles_n = tl.cdiv(N, BLOCK_N)
    first_m = tile // (GROUP_M * tiles_n) * GROUP_M
    width = tl.minimum(tl.cdiv(M, BLOCK_M) - first_m, GROUP_M)
    within = tile % (GROUP_M * tiles_n)
    tile_m, tile_n = first_m + within % width, within // width

    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    k = tl.arange(0, BLOCK_K)
    rows, wide_k = n.to(tl.int64), k.to(tl.int64)
    begin = part * K_OF_PART
    x_at = x + m.to(tl.int64)[None, :] * stride_x_row + (begin + wide_k)[:, None] * stride_x_column
    if not BULK:
        q_at = q + rows[:, None] * stride_q_row + (begin + wide_k)[None, :] * stride_q_column
    sums = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for start in range(begin, tl.minimum(begin + K_OF_PART, K), BLOCK_K):
        there = k < K - start
        if BULK:
            codes = q.load([tile_n * BLOCK_N, start])
        else:
            codes = tl.load(q_at, mask=(n < N)[:, None] & there[None, :], other=0)
            q_at += BLOCK_K * stride_q_column
        given = tl.load(x_at, mask=there[:, None] & (m < M)[None, :], other=0.0)
        x_at += BLOCK_K * stride_x_column
        weight = _decode(codes, FORMAT, given.dtype, BY_BITS)
        if SCALES == "block":
            of_row = (tile_n * BLOCK_N // _SCALE_BLOCK).to(tl.int64) * stride_scale_row
            factor = tl.load(scale + of_row + start // _SCALE_BLOCK * stride_scale_column)
            product = tl.dot(weight, given, input_precision="ieee")
            sums += (product if RESCALE == 1.0 else product * RESCALE) * factor
        else:
            sums = tl.dot(weight, given, sums, input_precision="ieee")
    if SCALES != "block" and RESCALE != 1.0:
        sums *= RESCALE
    if PARTS == 1:
        sums = _scaled(sums, scale, bias, rows, N, stride_scale_row, stride_bias, SCALES)
    at = (part.to(tl.int64) * M + m)[:, None] * N + n[None, :]
    tl.store(out + at, tl.trans(sums).to(out.dtype.element_ty), mask=(m < M)[:, None] & (n < N)[None, :])


@triton.jit
def add_parts(
    parts, scale, bias, out, M, N, stride_scale_row, stride_bias, SCALES: tl.constexpr, PARTS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """BLOCK_N results of one row, from the first part to the last."""
    m, n = tl.program_id(1).to(tl.int64), tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    at, mask = m * N + n, n < N
    size = tl.full((), M, tl.int64) * N
    sums = tl.zeros((BLOCK_N,), tl.float32)
    for part in tl.static_range(PARTS):
        sums += tl.load(parts + part * size + at, mask=mask, other=0.0)
    scaled = _scaled(sums[:, None], scale, bias, n.to(tl.int64), N, stride_scale_row, stride_bias, SCALES)
    tl.store(out + at[:, None], scaled.to(out.dtype.element_ty), mask=mask[:, None])


def fp8_weight_only_mm(
    x: torch.Tensor, q: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None, *, out: torch.Tensor
) -> None:
    """x @ (q · scale).T + bias; parts of K in float32 where the tiles are few."""
    m, k = x.shape
    n = q.shape[0]
    if not m * n:
        return
    target = target_of(x)
    tile = dict(configuration(_FAMILY, target.capability, shape_class(x)))
    tiles = -(-m // tile["BLOCK_M"]) * -(-n // tile["BLOCK_N"])
    k_of_part = columns_of_part(tiles, k, tile["BLOCK_K"], tile.pop("PROGRAMS") * target.multiprocessors)
    parts = max(1, -(-k // k_of_part))
    into = out if parts == 1 else x.new_empty((parts, m, n), dtype=torch.float32)
    codes = q.view(torch.uint8)
    bulk = _can_be_described(codes, target)
    by_bits = target.capability < _HAS_FP8
    scales, stride_row, stride_column = _scales(q, scale)
    launch(
        _multiply,
        (tiles, parts),
        x=x,
        q=_described(codes, tile) if bulk else codes,
        scale=scale,
        bias=bias,
        out=into,
        M=m,
        N=n,
        K=k,
        K_OF_PART=k_of_part,
        stride_x_row=x.stride(0),
        stride_x_column=x.stride(1),
        stride_q_row=q.stride(0),
        stride_q_column=q.stride(1),
        stride_scale_row=stride_row,
        stride_scale_column=stride_column,
        stride_bias=0 if bias is None else bias.stride(0),
        FORMAT=_FORMATS[q.dtype],
        BY_BITS=by_bits,
        RESCALE=256.0 if by_bits and (x.dtype, q.dtype) == (torch.float16, torch.float8_e4m3fn) else 1.0,
        SCALES=scales,
        BULK=bulk,
        PARTS=parts,
        **tile,
    )
    if parts > 1:
        block = min(1024, triton.next_power_of_2(n))
        launch(
            add_parts,
            (-(-n // block), m),
            parts=into,
            scale=scale,
            bias=bias,
            out=out,
            M=m,
            N=n,
            stride_scale_row=stride_row,
            stride_bias=0 if bias is None else bias.stride(0),
            SCALES=scales,
            PARTS=parts,
            BLOCK_N=block,
        )


int8_weight_only_mm = fp8_weight_only_mm
"""The same of integers."""


def shape_class(x: torch.Tensor) -> str:
    rows = "few rows" if x.shape[0] <= 16 else "some rows" if x.shape[0] <= 64 else "many rows"
    return f"{rows} float32" if x.dtype == torch.float32 else rows


def columns_of_part(tiles: int, k: int, block_k: int, programs: int) -> int:
    """How much of K a program takes so that about this many have work: whole scale blocks, at least four of BLOCK_K."""
    parts = max(1, min(programs // tiles, k // (4 * block_k), 16))
    return max(1, -(-k // (parts * BLOCK))) * BLOCK


def _scales(q: torch.Tensor, scale: torch.Tensor) -> tuple[str, int, int]:
    """Whose the scales are, and their strides from row to row and from column to column."""
    if by_block(q, scale):
        return "block", scale.stride(0), scale.stride(1)
    return ("tensor", 0, 0) if scale.numel() == 1 else ("row", scale.stride(0), 0)


def _can_be_described(codes: torch.Tensor, target: Target) -> bool:
    """Whether the GPU can copy tiles of the weight by itself: rows follow each other at multiples of 16 bytes."""
    aligned = codes.data_ptr() % 16 == 0 and codes.stride(0) % 16 == 0 and codes.stride(1) == 1
    return target.capability >= _HAS_BULK_COPIES and aligned and codes.numel() > 0


def _described(codes: torch.Tensor, tile: dict[str, Any]) -> TensorDescriptor:
    return TensorDescriptor(codes, list(codes.shape), list(codes.stride()), [tile["BLOCK_N"], tile["BLOCK_K"]])
