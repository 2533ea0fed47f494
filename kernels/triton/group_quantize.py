"""Encoding to FP8 with a scale for each group along a row or for each block of a weight, and back, in Triton."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
import triton
import triton.language as tl

from policyquant.kernels.triton.encode import (
    encode,
    encode_by_power_of_two,
    finite_magnitude,
    next_power_of_two,
    scale_of,
)
from policyquant.kernels.triton.launch import launch, target_of
from policyquant.kernels.triton.rows import as_rows
from policyquant.kernels.tuning import configuration

_FAMILY: Final = "group_quantize"
_FEW_ROWS: Final = 4
_ELEMENTS: Final = 4096
"""Of a tile whose groups have a size that no configuration names."""


@triton.jit
def _tile(tile, groups, GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_G: tl.constexpr):
    """The rows, the groups and the columns of BLOCK_M × BLOCK_G groups, int64. A tile has a line for each group.

    Neighbouring lines are neighbouring rows, whose scales lie side by side in columns.
    """
    across = tl.cdiv(groups, BLOCK_G)
    line = tl.arange(0, BLOCK_M * BLOCK_G)[:, None]
    row = (tile // across).to(tl.int64) * BLOCK_M + line % BLOCK_M
    group = (tile % across).to(tl.int64) * BLOCK_G + line // BLOCK_M
    return row, group, group * GROUP + tl.arange(0, GROUP)[None, :]


@triton.jit
def _encoded(value, amax, POWER_OF_TWO: tl.constexpr, LARGEST: tl.constexpr, DTYPE: tl.constexpr):
    """Codes and the scale, which comes from the largest finite magnitude."""
    scale = scale_of(amax, LARGEST, 0.0, False)
    if POWER_OF_TWO:
        scale = next_power_of_two(scale)
        codes = encode_by_power_of_two(value, scale, LARGEST, DTYPE)
    else:
        codes = encode(value, scale, LARGEST, DTYPE)
    return codes, scale


@triton.jit
def _encode_groups(
    x, out, out_scale, M, K, groups, stride_x_row, stride_x_column, stride_scale_row, stride_scale_group,
    POWER_OF_TWO: tl.constexpr, LARGEST: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_G: tl.constexpr,
):  # fmt: skip
    """BLOCK_M × BLOCK_G groups a program, in registers."""
    row, group, column = _tile(tl.program_id(0), groups, GROUP, BLOCK_M, BLOCK_G)
    mask = (row < M) & (column < K)
    value = tl.load(x + row * stride_x_row + column * stride_x_column, mask=mask, other=0.0)
    amax = tl.max(finite_magnitude(value), axis=1, keep_dims=True)
    codes, scale = _encoded(value, amax, POWER_OF_TWO, LARGEST, out.dtype.element_ty)
    to = out_scale + row * stride_scale_row + group * stride_scale_group
    tl.store(to, scale, mask=(row < M) & (group < groups))
    tl.store(out + row * K + column, codes, mask=mask)


@triton.jit
def _encode_blocks(
    w, out, out_scale, N, K, down, across, stride_w_batch, stride_w_row, stride_w_column,
    POWER_OF_TWO: tl.constexpr, LARGEST: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One block a program, in registers."""
    block = tl.program_id(0)
    batch = (block // (down * across)).to(tl.int64)
    within = block % (down * across)
    row = (within // across).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[:, None]
    column = (within % across).to(tl.int64) * BLOCK_K + tl.arange(0, BLOCK_K)[None, :]
    mask = (row < N) & (column < K)
    value = tl.load(w + batch * stride_w_batch + row * stride_w_row + column * stride_w_column, mask=mask, other=0.0)
    amax = tl.max(tl.max(finite_magnitude(value), axis=1), axis=0)
    codes, scale = _encoded(value, amax, POWER_OF_TWO, LARGEST, out.dtype.element_ty)
    tl.store(out_scale + block, scale)
    tl.store(out + (batch * N + row) * K + column, codes, mask=mask)


@triton.jit
def _decode_blocks(
    q, scale, out, rows, N, K, groups, stride_q_batch, stride_q_row, stride_q_column,
    stride_scale_batch, stride_scale_row, stride_scale_group,
    ROWS: tl.constexpr, GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_G: tl.constexpr,
):  # fmt: skip
    """Blocks of ROWS × GROUP; BLOCK_M rows of BLOCK_G of them a program."""
    row, group, column = _tile(tl.program_id(0), groups, GROUP, BLOCK_M, BLOCK_G)
    mask = (row < rows) & (column < K)
    batch = row // N
    within = row - batch * N
    code = tl.load(q + batch * stride_q_batch + within * stride_q_row + column * stride_q_column, mask=mask)
    at = batch * stride_scale_batch + within // ROWS * stride_scale_row + group * stride_scale_group
    known = tl.load(scale + at, mask=(row < rows) & (group < groups), other=1.0)
    tl.store(out + row * K + column, (code.to(tl.float32) * known).to(out.dtype.element_ty), mask=mask)


def group_fp8_quant(
    x: torch.Tensor,
    group_size: int,
    column_major: bool,
    power_of_two: bool,
    *,
    out: torch.Tensor,
    out_scale: torch.Tensor,
) -> None:
    """Codes and a scale for each group along a row, where `out_scale` has it."""
    rows, scales = as_rows(x), as_rows(out_scale)
    (m, k), groups = rows.shape, scales.shape[1]
    tuned = _configuration(x, group_size, m)
    launch(
        _encode_groups, (triton.cdiv(m, tuned["BLOCK_M"]) * triton.cdiv(groups, tuned["BLOCK_G"]),), **tuned,
        x=rows, out=out, out_scale=scales, M=m, K=k, groups=groups,
        stride_x_row=rows.stride(0), stride_x_column=rows.stride(1),
        stride_scale_row=scales.stride(0), stride_scale_group=scales.stride(1),
        POWER_OF_TWO=power_of_two, LARGEST=torch.finfo(out.dtype).max, GROUP=group_size,
    )  # fmt: skip


def block_fp8_quant(
    w: torch.Tensor, block: Sequence[int], power_of_two: bool, *, out: torch.Tensor, out_scale: torch.Tensor
) -> None:
    """Codes and a scale for each block."""
    batches = _as_batches(w)
    _, n, k = batches.shape
    down, across = out_scale.shape[-2:]
    tuned = configuration(_FAMILY, target_of(w).capability, "block")
    launch(
        _encode_blocks, (out_scale.numel(),), **tuned,
        w=batches, out=out, out_scale=out_scale, N=n, K=k, down=down, across=across,
        stride_w_batch=batches.stride(0), stride_w_row=batches.stride(1), stride_w_column=batches.stride(2),
        POWER_OF_TWO=power_of_two, LARGEST=torch.finfo(out.dtype).max, BLOCK_N=block[0], BLOCK_K=block[1],
    )  # fmt: skip


def dequantize_blocks(q: torch.Tensor, scale: torch.Tensor, block: Sequence[int], *, out: torch.Tensor) -> None:
    """q · scale of each block."""
    batches, scales = _as_batches(q), _as_batches(scale)
    batch, n, k = batches.shape
    groups = scales.shape[2]
    tuned = _configuration(q, block[1], batch * n)
    launch(
        _decode_blocks, (triton.cdiv(batch * n, tuned["BLOCK_M"]) * triton.cdiv(groups, tuned["BLOCK_G"]),), **tuned,
        q=batches, scale=scales, out=out, rows=batch * n, N=n, K=k, groups=groups,
        stride_q_batch=batches.stride(0), stride_q_row=batches.stride(1), stride_q_column=batches.stride(2),
        stride_scale_batch=scales.stride(0), stride_scale_row=scales.stride(1), stride_scale_group=scales.stride(2),
        ROWS=block[0], GROUP=block[1],
    )  # fmt: skip


def _as_batches(x: torch.Tensor) -> torch.Tensor:
    """[..., N, K] as [E, N, K]: a view where one stride leads through the leading dimensions, else a copy."""
    size = 1
    for each in x.shape[:-2]:
        size *= each
    return x.reshape(size, *x.shape[-2:])


def _configuration(x: torch.Tensor, group: int, rows: int) -> Mapping[str, Any]:
    """That of this group's size, or one of the same number of elements."""
    few = "few rows" if rows <= _FEW_ROWS else "many rows"
    tuned = dict(configuration(_FAMILY, target_of(x).capability, few))
    groups = max(1, _ELEMENTS // group)
    tuned["BLOCK_M"] = min(tuned["BLOCK_M"], groups)
    tuned["BLOCK_G"] = groups // tuned["BLOCK_M"]
    return tuned
