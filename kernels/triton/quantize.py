"""Encoding to 8 bits with one scale for a tensor or for each of its rows, and back, in Triton.

Kernels see a tensor as [A, B, C] with any strides: A · B rows of C elements. Results are contiguous.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import torch
import triton
import triton.language as tl

from policyquant.kernels.triton.encode import SMALLEST_SCALE, encode, encode_int8, finite_magnitude, scale_of
from policyquant.kernels.triton.launch import launch, target_of
from policyquant.kernels.triton.rows import width_class
from policyquant.kernels.tuning import configuration

_FAMILY: Final = "quantize"
_NARROWEST_ROW, _WIDEST_ROW = 128, 16384
_INT8_HALF_RANGE: Final = 127.5
_PROGRAMS: Final = 4
"""To a multiprocessor, of those that go through many tiles."""


@triton.jit
def _offset(row, column, B, stride_a, stride_b, stride_c):
    """Where elements are; int64."""
    outer = row // B
    return outer * stride_a + (row - outer * B) * stride_b + column * stride_c


@triton.jit
def _tile(tile, rows, C, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """The rows and columns of a tile, int64, and which of its elements exist."""
    across = tl.cdiv(C, BLOCK_N)
    row = (tile // across).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    column = (tile % across).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    return row, column, (row < rows) & (column < C)


@triton.jit
def _scales(scale, row, column, mask, rows, B, stride_a, stride_b, stride_c, SCALES: tl.constexpr):
    """Float32 scales that broadcast against a tile. SCALES: "one", one for each "row", or for each "element"."""
    if SCALES == "one":
        known = tl.load(scale)
    elif SCALES == "row":
        at = _offset(row, tl.zeros_like(row), B, stride_a, stride_b, stride_c)
        known = tl.load(scale + at, mask=row < rows, other=1.0)
    else:
        at = _offset(row, column, B, stride_a, stride_b, stride_c)
        known = tl.load(scale + at, mask=mask, other=1.0)
    return known.to(tl.float32)


@triton.jit
def _encode_by_scale(
    x, scale, out, rows, B, C, x_stride_a, x_stride_b, x_stride_c, scale_stride_a, scale_stride_b, scale_stride_c,
    SCALES: tl.constexpr, LARGEST: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One tile a program."""
    row, column, mask = _tile(tl.program_id(0), rows, C, BLOCK_M, BLOCK_N)
    value = tl.load(x + _offset(row, column, B, x_stride_a, x_stride_b, x_stride_c), mask=mask, other=0.0)
    known = _scales(scale, row, column, mask, rows, B, scale_stride_a, scale_stride_b, scale_stride_c, SCALES)
    known = tl.maximum(known, SMALLEST_SCALE, propagate_nan=tl.PropagateNan.ALL)
    tl.store(out + row * C + column, encode(value, known, LARGEST, out.dtype.element_ty), mask=mask)


@triton.jit
def _decode(
    q, scale, out, rows, B, C, q_stride_a, q_stride_b, q_stride_c, scale_stride_a, scale_stride_b, scale_stride_c,
    SCALES: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One tile a program."""
    row, column, mask = _tile(tl.program_id(0), rows, C, BLOCK_M, BLOCK_N)
    code = tl.load(q + _offset(row, column, B, q_stride_a, q_stride_b, q_stride_c), mask=mask)
    known = _scales(scale, row, column, mask, rows, B, scale_stride_a, scale_stride_b, scale_stride_c, SCALES)
    value = code.to(tl.float32) * known
    tl.store(out + row * C + column, value.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _largest_by_program(
    x, largest, rows, B, C, tiles, x_stride_a, x_stride_b, x_stride_c, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """The largest finite magnitude of every so-manieth tile. Each program has a place of its own for it, so that
    nothing must be zero before and the order of programs does not matter."""
    amax = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        row, column, mask = _tile(tile, rows, C, BLOCK_M, BLOCK_N)
        value = tl.load(x + _offset(row, column, B, x_stride_a, x_stride_b, x_stride_c), mask=mask, other=0.0)
        amax = tl.maximum(amax, finite_magnitude(value))
    tl.store(largest + tl.program_id(0), tl.max(tl.max(amax, axis=1), axis=0))


@triton.jit
def _encode_by_largest(
    x, largest, out, out_scale, scale_ub, rows, B, C, tiles, x_stride_a, x_stride_b, x_stride_c,
    PROGRAMS: tl.constexpr, LARGEST: tl.constexpr, BOUNDED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """As many programs as found `largest`, of which each makes the scale from all and encodes every so-manieth tile."""
    program = tl.arange(0, PROGRAMS)
    found = tl.load(largest + program, mask=program < tl.num_programs(0), other=0.0)
    scale = scale_of(tl.max(found, axis=0), LARGEST, scale_ub, BOUNDED)
    if tl.program_id(0) == 0:
        tl.store(out_scale, scale)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        row, column, mask = _tile(tile, rows, C, BLOCK_M, BLOCK_N)
        value = tl.load(x + _offset(row, column, B, x_stride_a, x_stride_b, x_stride_c), mask=mask, other=0.0)
        tl.store(out + row * C + column, encode(value, scale, LARGEST, out.dtype.element_ty), mask=mask)


@triton.jit
def _encoded(value, scale, LARGEST: tl.constexpr, DTYPE: tl.constexpr):
    """Codes in FP8 or int8."""
    if DTYPE.is_int():
        codes = encode_int8(value, scale)
    else:
        codes = encode(value, scale, LARGEST, DTYPE)
    return codes


@triton.jit
def _encode_rows(
    x, out, out_scale, scale_ub, rows, B, C, x_stride_a, x_stride_b, x_stride_c,
    LARGEST: tl.constexpr, BOUNDED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """BLOCK_M whole rows a program, kept in registers, with a scale for each."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    column = tl.arange(0, BLOCK_N)[None, :].to(tl.int64)
    mask = (row < rows) & (column < C)
    value = tl.load(x + _offset(row, column, B, x_stride_a, x_stride_b, x_stride_c), mask=mask, other=0.0)
    scale = scale_of(tl.max(finite_magnitude(value), axis=1, keep_dims=True), LARGEST, scale_ub, BOUNDED)
    tl.store(out_scale + row, scale, mask=row < rows)
    tl.store(out + row * C + column, _encoded(value, scale, LARGEST, out.dtype.element_ty), mask=mask)


@triton.jit
def _encode_row_in_steps(
    x, out, out_scale, scale_ub, B, C, x_stride_a, x_stride_b, x_stride_c,
    LARGEST: tl.constexpr, BOUNDED: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One row a program, read twice."""
    row = tl.program_id(0).to(tl.int64)
    amax = tl.zeros((BLOCK_N,), tl.float32)
    for start in range(0, C, BLOCK_N):
        column = start + tl.arange(0, BLOCK_N).to(tl.int64)
        at = _offset(row, column, B, x_stride_a, x_stride_b, x_stride_c)
        amax = tl.maximum(amax, finite_magnitude(tl.load(x + at, mask=column < C, other=0.0)))
    scale = scale_of(tl.max(amax, axis=0), LARGEST, scale_ub, BOUNDED)
    tl.store(out_scale + row, scale)
    for start in range(0, C, BLOCK_N):
        column = start + tl.arange(0, BLOCK_N).to(tl.int64)
        at = _offset(row, column, B, x_stride_a, x_stride_b, x_stride_c)
        value = tl.load(x + at, mask=column < C, other=0.0)
        tl.store(out + row * C + column, _encoded(value, scale, LARGEST, out.dtype.element_ty), mask=column < C)


def static_scaled_fp8_quant(x: torch.Tensor, scale: torch.Tensor, *, out: torch.Tensor) -> None:
    """Codes of x / scale; scale broadcasts against x."""
    values, scales, rows = _as_three_dimensions(x, scale, x.shape)
    tuned = _configuration(x, _tile_class(values))
    launch(
        _encode_by_scale, (_tiles(values, tuned),), **tuned,
        x=values, scale=scales, out=out, rows=rows, **_layout(values, "x"), **_strides(scales, "scale"),
        SCALES=_kind(scales), LARGEST=torch.finfo(out.dtype).max,
    )  # fmt: skip


def dequantize(q: torch.Tensor, scale: torch.Tensor, *, out: torch.Tensor) -> None:
    """q · scale; both broadcast."""
    values, scales, rows = _as_three_dimensions(q, scale, out.shape)
    tuned = _configuration(q, _tile_class(values))
    launch(
        _decode, (_tiles(values, tuned),), **tuned,
        q=values, scale=scales, out=out, rows=rows, **_layout(values, "q"), **_strides(scales, "scale"),
        SCALES=_kind(scales),
    )  # fmt: skip


def dynamic_scaled_fp8_quant(
    x: torch.Tensor, scale_ub: float | None, *, out: torch.Tensor, out_scale: torch.Tensor
) -> None:
    """Two launches: the first leaves a largest magnitude for each program, the second reduces those and encodes."""
    values, _, rows = _as_three_dimensions(x, None, x.shape)
    tuned = _configuration(x, _tile_class(values))
    tiles = _tiles(values, tuned)
    programs = max(1, min(tiles, _PROGRAMS * target_of(x).multiprocessors))
    largest = torch.empty(programs, dtype=torch.float32, device=x.device)
    shared: dict[str, Any] = {"x": values, "rows": rows, "tiles": tiles, **_layout(values, "x"), **tuned}
    launch(_largest_by_program, (programs,), largest=largest, **shared)
    launch(
        _encode_by_largest, (programs,), largest=largest, out=out, out_scale=out_scale, **shared, **_bound(scale_ub),
        PROGRAMS=triton.next_power_of_2(programs), LARGEST=torch.finfo(out.dtype).max,
    )  # fmt: skip


def per_token_scaled_fp8_quant(
    x: torch.Tensor, scale_ub: float | None, *, out: torch.Tensor, out_scale: torch.Tensor
) -> None:
    """Codes of x and a scale for each row."""
    _rows_with_scales(x, scale_ub, out, out_scale, torch.finfo(out.dtype).max)


def per_channel_int8_quant(w: torch.Tensor, *, out: torch.Tensor, out_scale: torch.Tensor) -> None:
    """Codes of w in [-128, 127] and a scale for each row."""
    _rows_with_scales(w, None, out, out_scale, _INT8_HALF_RANGE)


def _rows_with_scales(
    x: torch.Tensor, scale_ub: float | None, out: torch.Tensor, out_scale: torch.Tensor, largest: float
) -> None:
    values, _, rows = _as_three_dimensions(x, None, x.shape, whole_rows=True)
    width = values.shape[2]
    shared: dict[str, Any] = {"x": values, "out": out, "out_scale": out_scale, "LARGEST": largest, **_bound(scale_ub)}
    if width <= _WIDEST_ROW:
        tuned = _configuration(x, f"row {width_class(width, _NARROWEST_ROW, _WIDEST_ROW)}")
        grid = (triton.cdiv(rows, tuned["BLOCK_M"]),)
        launch(_encode_rows, grid, rows=rows, **shared, **_layout(values, "x"), **tuned)
    else:
        tuned = _configuration(x, "in steps")
        launch(_encode_row_in_steps, (rows,), **shared, **_layout(values, "x"), **tuned)


def _configuration(x: torch.Tensor, shape_class: str) -> Mapping[str, Any]:
    return configuration(_FAMILY, target_of(x).capability, shape_class)


def _bound(scale_ub: float | None) -> dict[str, Any]:
    return {"scale_ub": 0.0 if scale_ub is None else float(scale_ub), "BOUNDED": scale_ub is not None}


def _kind(scale: torch.Tensor | None) -> str:
    """How many scales there are, of [A, B, C]."""
    assert scale is not None
    varies = [size > 1 and stride != 0 for size, stride in zip(scale.shape, scale.stride(), strict=True)]
    return "element" if varies[2] else "row" if any(varies) else "one"


def _tile_class(x: torch.Tensor) -> str:
    """Of tiles of [A, B, C]: along a row, unless rows are narrow or elements of a row lie apart."""
    return "wide tile" if x.stride(2) == 1 and x.shape[2] >= 2048 else "tile"


def _tiles(x: torch.Tensor, tuned: Mapping[str, Any]) -> int:
    a, b, c = x.shape
    return int(triton.cdiv(a * b, tuned["BLOCK_M"]) * triton.cdiv(c, tuned["BLOCK_N"]))


def _layout(x: torch.Tensor, name: str) -> dict[str, int]:
    return {"B": x.shape[1], "C": x.shape[2], **_strides(x, name)}


def _strides(x: torch.Tensor | None, name: str) -> dict[str, int]:
    assert x is not None
    return {f"{name}_stride_{letter}": stride for letter, stride in zip("abc", x.stride(), strict=True)}


def _as_three_dimensions(
    x: torch.Tensor, scale: torch.Tensor | None, shape: torch.Size, whole_rows: bool = False
) -> tuple[torch.Tensor, Any, int]:
    """x and scale, both broadcast to `shape`, as [A, B, C], and A · B.

    Neighbouring dimensions through which one stride leads, in both, are made one; the last is left alone if
    `whole_rows`. If more than three remain, copies take their place.
    """
    x = x.expand(shape)
    given = [x] if scale is None else [x, scale.expand(shape)]
    merged = _merged(list(shape), [list(each.stride()) for each in given], whole_rows)
    if merged is None:
        given = [each.contiguous() for each in given]
        merged = _merged(list(shape), [list(each.stride()) for each in given], whole_rows)
    assert merged is not None
    sizes, strides = merged
    views = [each.as_strided(sizes, stride) for each, stride in zip(given, strides, strict=True)]
    return views[0], views[1] if scale is not None else None, math.prod(sizes[:2])


def _merged(
    sizes: list[int], strides: list[list[int]], whole_rows: bool
) -> tuple[tuple[int, ...], list[tuple[int, ...]]] | None:
    """Three sizes and, for each tensor, three strides; None if there are more."""
    last = len(sizes) - 1
    kept: list[tuple[int, list[int]]] = []
    for i, size in enumerate(sizes):
        own = [each[i] for each in strides]
        alone = whole_rows and i == last
        if size == 1 and not alone:
            continue
        if kept and not alone:
            before, outer = kept[-1]
            if all(far == near * size for far, near in zip(outer, own, strict=True)):
                kept[-1] = before * size, own
                continue
        kept.append((size, own))
    if len(kept) > 3:
        return None
    # A size of 1 in the middle spares kernels a division. Its stride is not used; 1 is the best to say of the last.
    while len(kept) < 3:
        kept.insert(min(1, max(0, len(kept) - 1)), (1, [0 if kept else 1 for _ in strides]))
    return tuple(size for size, _ in kept), [tuple(own[t] for _, own in kept) for t in range(len(strides))]
