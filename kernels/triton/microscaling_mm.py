"""Products with weights in MX or NVFP4, in Triton.

Decoded, as in `weight_only_mm`: the weight is the left operand, and K is split where the tiles are too few for the GPU.
Codes of MX become numbers of the activations' dtype, exactly, and the sums of each block of 32 are multiplied by its
scale, so that no scale is too small or too large for the dtype. Codes of NVFP4 times their block's scale are 2**-10 to
2688 with six significant bits, exact in every dtype, and are multiplied as such.

Native, for compute capability 10.0 and two operands in MX: `tl.dot_scaled` takes codes as they are, and scales from
blocks of 128 × 4, as `scale_layouts.swizzle_128x4` lays them out.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import triton
import triton.language as tl

from policyquant.kernels.cpu.microscaling import E4M3, MX_BLOCK, NVFP4_BLOCK
from policyquant.kernels.scale_layouts import swizzle_128x4
from policyquant.kernels.triton.launch import launch, target_of
from policyquant.kernels.triton.microscaling import decode_e4m3, decode_e8m0, decode_fp4
from policyquant.kernels.triton.weight_only_mm import add_parts, columns_of_part, shape_class
from policyquant.kernels.tuning import configuration

_FAMILY: Final = "microscaling_mm"
_HAS_SCALED_PRODUCTS: Final = (10, 0)
_MX: Final = tl.constexpr(MX_BLOCK)
_NVFP4: Final = tl.constexpr(NVFP4_BLOCK)


@triton.jit
def _weight(at, rows_there, byte, bytes_left, PACKED: tl.constexpr):
    """Float32 values of codes of some rows."""
    codes = tl.load(at, mask=rows_there[:, None] & (byte < bytes_left)[None, :], other=0)
    if PACKED:
        values = decode_fp4(tl.interleave(codes & 15, codes >> 4).to(tl.int32))
    else:
        values = decode_e4m3(codes)
    return values


@triton.jit
def _multiply(
    x, scale_x, q, scale, global_scale, bias, out, M, N, K, K_OF_PART, stride_x_row, stride_x_column,
    stride_scale_x_row, stride_scale_x_block, stride_q_row, stride_q_column, stride_scale_row, stride_scale_block,
    stride_bias, PACKED: tl.constexpr, PARTS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """One tile of one part of K; `out` takes float32 parts [PARTS, M, N] if PARTS > 1.

    NVFP4 if there is a global scale, else MX. x is codes of MXFP8 if it has scales.
    """
    per_byte: tl.constexpr = 2 if PACKED else 1
    # Programs that follow each other share the weight's rows, and GROUP_M tiles of x stay in the cache.
    tile, part = tl.program_id(0), tl.program_id(1)
    tiles_n = tl.cdiv(N, BLOCK_N)
    first_m = tile // (GROUP_M * tiles_n) * GROUP_M
    width = tl.minimum(tl.cdiv(M, BLOCK_M) - first_m, GROUP_M)
    within = tile % (GROUP_M * tiles_n)
    tile_m, tile_n = first_m + within % width, within // width

    n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    k, byte = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_K // per_byte)
    rows, columns = n.to(tl.int64), m.to(tl.int64)
    begin = part * K_OF_PART
    x_at = x + columns[None, :] * stride_x_row + (begin + k.to(tl.int64))[:, None] * stride_x_column
    q_at = q + rows[:, None] * stride_q_row + (begin // per_byte + byte.to(tl.int64))[None, :] * stride_q_column
    sums = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for start in range(begin, tl.minimum(begin + K_OF_PART, K), BLOCK_K):
        given = tl.load(x_at, mask=(k < K - start)[:, None] & (m < M)[None, :], other=0)
        values = _weight(q_at, n < N, byte, (K - start) // per_byte, PACKED)
        x_at += BLOCK_K * stride_x_column
        q_at += BLOCK_K // per_byte * stride_q_column
        if global_scale is not None:
            block = start // _NVFP4 + tl.arange(0, BLOCK_K // _NVFP4)
            there = (n < N)[:, None] & (block < tl.cdiv(K, _NVFP4))[None, :]
            at = scale + rows[:, None] * stride_scale_row + block.to(tl.int64)[None, :] * stride_scale_block
            by_block = decode_e4m3(tl.load(at, mask=there, other=0))[:, :, None]
            values = tl.reshape(values, (BLOCK_N, BLOCK_K // _NVFP4, _NVFP4)) * by_block
            values = tl.reshape(values, (BLOCK_N, BLOCK_K))
            sums = tl.dot(values.to(given.dtype), given, sums, input_precision="ieee")
        else:
            tl.static_assert(BLOCK_K == _MX)
            block = tl.full((), start // _MX, tl.int64)
            stored = tl.load(scale + rows * stride_scale_row + block * stride_scale_block, mask=n < N, other=0)
            if scale_x is not None:
                of_x = scale_x + columns * stride_scale_x_row + block * stride_scale_x_block
                numbers = decode_e4m3(given).to(tl.bfloat16)
                product = tl.dot(values.to(tl.bfloat16), numbers)
                product *= decode_e8m0(tl.load(of_x, mask=m < M, other=0))[None, :]
            else:
                product = tl.dot(values.to(given.dtype), given, input_precision="ieee")
            sums += product * decode_e8m0(stored)[:, None]
    if PARTS == 1:
        if global_scale is not None:
            sums *= tl.load(global_scale)
        if bias is not None:
            sums += tl.load(bias + rows * stride_bias, mask=n < N, other=0.0).to(tl.float32)[:, None]
    at = (part.to(tl.int64) * M + m)[:, None] * N + n[None, :]
    tl.store(out + at, tl.trans(sums).to(out.dtype.element_ty), mask=(m < M)[:, None] & (n < N)[None, :])


@triton.jit
def _scales_of_tile(scales, tile, step, across):
    """[128, 4] of the block that holds the scales of a tile's rows and a step's 128 columns."""
    at = (tile.to(tl.int64) * across + step) * 512
    block = tl.reshape(tl.load(scales + at + tl.arange(0, 512)), (32, 4, 4))
    return tl.reshape(tl.permute(block, (1, 0, 2)), (128, 4))


@triton.jit
def _multiply_scaled(
    a, b, scale_a, scale_b, bias, out, M, N, K, stride_a, stride_b, stride_bias, PACKED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """One tile. a [M, K] and b have unit stride along K; scales lie in blocks of 128 × 4."""
    tl.static_assert(BLOCK_M == 128 and BLOCK_N == 128 and BLOCK_K == 4 * _MX)
    per_byte: tl.constexpr = 2 if PACKED else 1
    tile, tiles_n = tl.program_id(0), tl.cdiv(N, BLOCK_N)
    first_m = tile // (GROUP_M * tiles_n) * GROUP_M
    height = tl.minimum(tl.cdiv(M, BLOCK_M) - first_m, GROUP_M)
    within = tile % (GROUP_M * tiles_n)
    tile_m, tile_n = first_m + within % height, within // height

    m, n = tile_m * BLOCK_M + tl.arange(0, BLOCK_M), tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    k, byte = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_K // per_byte)
    # What lies beyond the last row is computed from that row and not stored.
    from_m, from_n = tl.minimum(m, M - 1).to(tl.int64), tl.minimum(n, N - 1).to(tl.int64)
    a_at = a + from_m[:, None] * stride_a + k[None, :]
    b_at = b + from_n[:, None] * stride_b + byte[None, :]
    across = tl.cdiv(K, BLOCK_K)
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(across):
        left = K - step * BLOCK_K
        of_a = tl.load(a_at, mask=(k < left)[None, :], other=0.0)
        of_b = tl.load(b_at, mask=(byte < left // per_byte)[None, :], other=0.0)
        a_at += BLOCK_K
        b_at += BLOCK_K // per_byte
        scales_a = _scales_of_tile(scale_a, tile_m, step, across)
        scales_b = _scales_of_tile(scale_b, tile_n, step, across)
        if PACKED:
            sums = tl.dot_scaled(of_a, scales_a, "e4m3", of_b.T, scales_b, "e2m1", sums)
        else:
            sums = tl.dot_scaled(of_a, scales_a, "e4m3", of_b.T, scales_b, "e4m3", sums)
    if bias is not None:
        sums += tl.load(bias + from_n * stride_bias).to(tl.float32)[None, :]
    at = m.to(tl.int64)[:, None] * N + n[None, :]
    tl.store(out + at, sums.to(out.dtype.element_ty), mask=(m < M)[:, None] & (n < N)[None, :])


def mx_weight_only_mm(
    x: torch.Tensor, q: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None, *, out: torch.Tensor
) -> None:
    """x @ (q · scale).T + bias."""
    _decoded_product(x, None, q, scale, None, bias, out, shape_class(x))


def nvfp4_weight_only_mm(
    x: torch.Tensor,
    q: torch.Tensor,
    scale: torch.Tensor,
    global_scale: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    out: torch.Tensor,
) -> None:
    """(x @ (q · scale).T) · global_scale + bias."""
    _decoded_product(x, None, q, scale, global_scale, bias, out, f"{shape_class(x)}, nvfp4")


def mx_scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    out: torch.Tensor,
) -> None:
    """(a · scale_a) @ (b · scale_b).T + bias."""
    target = target_of(a)
    if target.capability < _HAS_SCALED_PRODUCTS:
        _decoded_product(a, scale_a, b, scale_b, None, bias, out, shape_class(a))
        return
    (m, k), n = a.shape, b.shape[0]
    a, b = (each if each.stride(1) == 1 else each.contiguous() for each in (a, b))
    tile = configuration(_FAMILY, target.capability, "scaled products")
    launch(
        _multiply_scaled, (-(-m // tile["BLOCK_M"]) * -(-n // tile["BLOCK_N"]),), **tile,
        a=a, b=b, scale_a=swizzle_128x4(scale_a.view(torch.uint8)), scale_b=swizzle_128x4(scale_b.view(torch.uint8)),
        bias=bias, out=out, M=m, N=n, K=k, stride_a=a.stride(0), stride_b=b.stride(0),
        stride_bias=0 if bias is None else bias.stride(0), PACKED=b.dtype != E4M3,
    )  # fmt: skip


def _decoded_product(
    x: torch.Tensor,
    scale_x: torch.Tensor | None,
    q: torch.Tensor,
    scale: torch.Tensor,
    global_scale: torch.Tensor | None,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    wanted: str,
) -> None:
    """Parts of K in float32 where the tiles are few."""
    (m, k), n = x.shape, q.shape[0]
    if not m * n:
        return
    target = target_of(x)
    tile: dict[str, Any] = dict(configuration(_FAMILY, target.capability, wanted))
    tiles = -(-m // tile["BLOCK_M"]) * -(-n // tile["BLOCK_N"])
    of_part = columns_of_part(tiles, k, tile["BLOCK_K"], tile.pop("PROGRAMS") * target.multiprocessors)
    parts = max(1, -(-k // of_part))
    into = out if parts == 1 else out.new_empty((parts, m, n), dtype=torch.float32)
    codes, scales = q.view(torch.uint8), scale.view(torch.uint8)
    scales_x = None if scale_x is None else scale_x.view(torch.uint8)
    stride_bias = 0 if bias is None else bias.stride(0)
    launch(
        _multiply, (tiles, parts), x=x if scale_x is None else x.view(torch.uint8), scale_x=scales_x, q=codes,
        scale=scales, global_scale=global_scale, bias=bias, out=into, M=m, N=n, K=k, K_OF_PART=of_part,
        stride_x_row=x.stride(0), stride_x_column=x.stride(1),
        stride_scale_x_row=0 if scales_x is None else scales_x.stride(0),
        stride_scale_x_block=0 if scales_x is None else scales_x.stride(1),
        stride_q_row=codes.stride(0), stride_q_column=codes.stride(1),
        stride_scale_row=scales.stride(0), stride_scale_block=scales.stride(1), stride_bias=stride_bias,
        PACKED=q.dtype != E4M3, PARTS=parts, **tile,
    )  # fmt: skip
    if parts > 1:
        block = min(1024, triton.next_power_of_2(n))
        launch(
            add_parts, (-(-n // block), m), parts=into, scale=global_scale, bias=bias, out=out, M=m, N=n,
            stride_scale_row=0, stride_bias=stride_bias, SCALES="block" if global_scale is None else "tensor",
            PARTS=parts, BLOCK_N=block,
        )  # fmt: skip
