"""Gated activations in Triton, alone and with encoding to FP8.

Gate and values come as two tensors with the same strides, so each has an alignment of its own: where N is odd, only one
of them is read element by element.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from policyquant.kernels.triton.encode import (
    SMALLEST_SCALE,
    encode,
    encode_by_power_of_two,
    finite_magnitude,
    next_power_of_two,
    scale_of,
)
from policyquant.kernels.triton.launch import launch, target_of
from policyquant.kernels.triton.rows import as_rows, width_class
from policyquant.kernels.tuning import configuration

_FAMILY = "activation"
_NARROWEST, _WIDEST_TILE, _WIDEST_ROW = 128, 2048, 16384


@triton.jit
def gated(gate, up, ACTIVATION: tl.constexpr):
    """act(gate) · up in their dtype: act(gate) is rounded to it, then the product."""
    wide = gate.to(tl.float32)
    if ACTIVATION == "silu":
        value = wide / (1.0 + tl.exp(-wide))
    elif ACTIVATION == "gelu":
        value = wide * 0.5 * (1.0 + tl.erf(wide * 0.7071067811865476))
    else:
        # (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)), which does not cancel.
        inner = 1.5957691216057308 * (wide + 0.044715 * wide * wide * wide)
        value = wide / (1.0 + tl.exp(-inner))
    return (value.to(gate.dtype).to(tl.float32) * up.to(tl.float32)).to(gate.dtype)


@triton.jit
def _load_gated(gate, up, rows, columns, mask, stride_row, stride_column, ACTIVATION: tl.constexpr):
    """Of rows [R, 1] and columns [R or 1, C]; zeros outside the mask."""
    at = rows.to(tl.int64) * stride_row + columns.to(tl.int64) * stride_column
    return gated(tl.load(gate + at, mask=mask, other=0.0), tl.load(up + at, mask=mask, other=0.0), ACTIVATION)


@triton.jit
def _activate(
    gate, up, out, scale, M, N, stride_row, stride_column,
    ACTIVATION: tl.constexpr, LARGEST: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """A tile of the result a program; codes under one static scale if there is one."""
    blocks = tl.cdiv(N, BLOCK_N)
    program = tl.program_id(0)
    rows = (program // blocks * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    columns = (program % blocks * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
    mask = (rows < M) & (columns < N)
    y = _load_gated(gate, up, rows, columns, mask, stride_row, stride_column, ACTIVATION)
    if scale is not None:
        known = tl.maximum(tl.load(scale), SMALLEST_SCALE, propagate_nan=tl.PropagateNan.ALL)
        y = encode(y, known, LARGEST, out.dtype.element_ty)
    tl.store(out + rows.to(tl.int64) * N + columns, y, mask=mask)


@triton.jit
def _activate_per_token(
    gate, up, out, out_scale, scale_ub, M, N, stride_row, stride_column,
    ACTIVATION: tl.constexpr, BOUNDED: tl.constexpr, LARGEST: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Whole rows a program, which stay in registers."""
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    rows, columns = row[:, None], tl.arange(0, BLOCK_N)[None, :]
    mask = (rows < M) & (columns < N)
    y = _load_gated(gate, up, rows, columns, mask, stride_row, stride_column, ACTIVATION)
    scale = scale_of(tl.max(finite_magnitude(y), axis=1), LARGEST, scale_ub, BOUNDED)
    tl.store(out_scale + row, scale, mask=row < M)
    codes = encode(y, scale[:, None], LARGEST, out.dtype.element_ty)
    tl.store(out + rows.to(tl.int64) * N + columns, codes, mask=mask)


@triton.jit
def _activate_per_token_in_steps(
    gate, up, out, out_scale, scale_ub, N, stride_row, stride_column,
    ACTIVATION: tl.constexpr, BOUNDED: tl.constexpr, LARGEST: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """A row a program, gone through twice: it is computed again instead of kept."""
    row = tl.program_id(0)
    rows = row + tl.zeros((1, 1), tl.int32)
    within = tl.arange(0, BLOCK_N)[None, :]
    largest = tl.zeros((1, BLOCK_N), tl.float32)
    for start in range(0, N, BLOCK_N):
        columns = start + within
        y = _load_gated(gate, up, rows, columns, columns < N, stride_row, stride_column, ACTIVATION)
        largest = tl.maximum(largest, finite_magnitude(y))
    scale = scale_of(tl.max(largest, axis=1), LARGEST, scale_ub, BOUNDED)
    tl.store(out_scale + row + tl.arange(0, 1), scale)
    for start in range(0, N, BLOCK_N):
        columns = start + within
        y = _load_gated(gate, up, rows, columns, columns < N, stride_row, stride_column, ACTIVATION)
        codes = encode(y, scale[:, None], LARGEST, out.dtype.element_ty)
        tl.store(out + rows.to(tl.int64) * N + columns, codes, mask=columns < N)


@triton.jit
def _activate_per_group(
    gate, up, out, out_scale, M, N, groups, stride_row, stride_column, stride_scale_row, stride_scale_group,
    ACTIVATION: tl.constexpr, POWER_OF_TWO: tl.constexpr, LARGEST: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_GROUPS: tl.constexpr,
):  # fmt: skip
    """BLOCK_GROUPS groups of BLOCK_M rows a program. Column-major scales want several rows, to be written together."""
    blocks = tl.cdiv(groups, BLOCK_GROUPS)
    program = tl.program_id(0)
    pair = tl.arange(0, BLOCK_M * BLOCK_GROUPS)
    row = program // blocks * BLOCK_M + pair // BLOCK_GROUPS
    group = program % blocks * BLOCK_GROUPS + pair % BLOCK_GROUPS
    rows, columns = row[:, None], group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    mask = (rows < M) & (columns < N)
    y = _load_gated(gate, up, rows, columns, mask, stride_row, stride_column, ACTIVATION)
    scale = scale_of(tl.max(finite_magnitude(y), axis=1), LARGEST, 0.0, False)
    if POWER_OF_TWO:
        scale = next_power_of_two(scale)
        codes = encode_by_power_of_two(y, scale[:, None], LARGEST, out.dtype.element_ty)
    else:
        codes = encode(y, scale[:, None], LARGEST, out.dtype.element_ty)
    at = row.to(tl.int64) * stride_scale_row + group.to(tl.int64) * stride_scale_group
    tl.store(out_scale + at, scale, mask=(row < M) & (group < groups))
    tl.store(out + rows.to(tl.int64) * N + columns, codes, mask=mask)


def silu_and_mul(x: torch.Tensor, *, out: torch.Tensor) -> None:
    """silu(gate) · up."""
    _launch_tiles(x, "silu", out, None)


def gelu_and_mul(x: torch.Tensor, approximate: str, *, out: torch.Tensor) -> None:
    """gelu(gate) · up."""
    _launch_tiles(x, "gelu_tanh" if approximate == "tanh" else "gelu", out, None)


def gated_activation_static_fp8_quant(
    x: torch.Tensor, scale: torch.Tensor, activation: str, *, out: torch.Tensor
) -> None:
    """Codes under one scale that is given."""
    _launch_tiles(x, activation, out, scale)


def gated_activation_per_token_fp8_quant(
    x: torch.Tensor, activation: str, scale_ub: float | None, *, out: torch.Tensor, out_scale: torch.Tensor
) -> None:
    """Codes and a scale for each row."""
    arguments = _halves(x)
    m, n = arguments["gate"].shape
    arguments |= {
        "out": out,
        "out_scale": out_scale,
        "scale_ub": 0.0 if scale_ub is None else scale_ub,
        "N": n,
        "ACTIVATION": activation,
        "BOUNDED": scale_ub is not None,
        "LARGEST": torch.finfo(out.dtype).max,
    }
    if n > _WIDEST_ROW:
        launch(_activate_per_token_in_steps, (m,), **arguments, **_configuration(x, "per token, in steps"))
        return
    tuned = _configuration(x, f"per token {width_class(n, _NARROWEST, _WIDEST_ROW)}")
    launch(_activate_per_token, (triton.cdiv(m, tuned["BLOCK_M"]),), M=m, **arguments, **tuned)


def gated_activation_group_fp8_quant(
    x: torch.Tensor,
    activation: str,
    group_size: int,
    column_major: bool,
    power_of_two: bool,
    *,
    out: torch.Tensor,
    out_scale: torch.Tensor,
) -> None:
    """Codes and a scale for each group of a row."""
    arguments = _halves(x)
    m, n = arguments["gate"].shape
    scales = as_rows(out_scale)
    tuned = _configuration(x, f"group {min(group_size, 128)} {'column' if column_major else 'row'} major")
    blocks = triton.cdiv(m, tuned["BLOCK_M"]) * triton.cdiv(scales.shape[1], tuned["BLOCK_GROUPS"])
    launch(
        _activate_per_group,
        (blocks,),
        **arguments,
        out=out,
        out_scale=scales,
        M=m,
        N=n,
        groups=scales.shape[1],
        stride_scale_row=scales.stride(0),
        stride_scale_group=scales.stride(1),
        ACTIVATION=activation,
        POWER_OF_TWO=power_of_two,
        LARGEST=torch.finfo(out.dtype).max,
        GROUP=group_size,
        **tuned,
    )


def _launch_tiles(x: torch.Tensor, activation: str, out: torch.Tensor, scale: torch.Tensor | None) -> None:
    arguments = _halves(x)
    m, n = arguments["gate"].shape
    tuned = _configuration(x, f"tile {width_class(n, _NARROWEST, _WIDEST_TILE)}")
    launch(
        _activate,
        (triton.cdiv(m, tuned["BLOCK_M"]) * triton.cdiv(n, tuned["BLOCK_N"]),),
        **arguments,
        out=out,
        scale=scale,
        M=m,
        N=n,
        ACTIVATION=activation,
        LARGEST=0.0 if scale is None else torch.finfo(out.dtype).max,
        **tuned,
    )


def _halves(x: torch.Tensor) -> dict[str, Any]:
    """Gate and values of x [..., 2N], both [M, N], and their strides."""
    gate, up = (as_rows(half) for half in x.chunk(2, dim=-1))
    return {"gate": gate, "up": up, "stride_row": gate.stride(0), "stride_column": gate.stride(1)}


def _configuration(x: torch.Tensor, shape_class: str) -> dict[str, Any]:
    return dict(configuration(_FAMILY, target_of(x).capability, shape_class))
