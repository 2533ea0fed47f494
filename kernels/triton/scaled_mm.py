"""Products of FP8 with FP8 in Triton: how tiles are chosen and launched; `scaled_mm_tiles` has the kernels."""

from __future__ import annotations

from typing import Any, Final

import torch

from policyquant.kernels.triton.launch import launch, target_of
from policyquant.kernels.triton.scaled_mm_tiles import product, summation
from policyquant.kernels.tuning import configuration

_FAMILY: Final = "scaled_mm"
_GROUP: Final = 128
_FP8: Final = (torch.float8_e4m3fn, torch.float8_e5m2)
_WIDE: Final = 16
"""Bytes of the widest load."""
_FEW: Final = 64
_MOST_SPLITS: Final = 16
_LEAST_STEPS: Final = 4
"""Of each part of a split K: fewer would be spent on filling the pipeline."""


def scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None,
    scale_result: torch.Tensor | None,
    *,
    out: torch.Tensor,
) -> None:
    """As the operator. Each tensor core's sum of 128 columns is added in float32."""
    _multiply(a, b, scale_a, scale_b, bias, scale_result, out, shape_class(a.shape[0]), 0)


def scaled_mm_fast_accum(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None,
    scale_result: torch.Tensor | None,
    *,
    out: torch.Tensor,
) -> None:
    """The same with sums that stay in the tensor cores, of about 14 bits on compute capability 8.9 and 9.0."""
    _multiply(a, b, scale_a, scale_b, bias, scale_result, out, f"{shape_class(a.shape[0])}, fast accumulation", 0)


def block_scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None,
    scale_result: torch.Tensor | None,
    *,
    out: torch.Tensor,
) -> None:
    """As the operator."""
    _multiply(a, b, scale_a, scale_b, bias, scale_result, out, f"{shape_class(a.shape[0])}, blocks", _GROUP)


def shape_class(rows: int) -> str:
    """What the table of configurations calls products with this many rows of a."""
    return next((f"{most} rows" for most in (16, 32, 64, 128) if rows <= most), "many rows")


def splits(tiles: int, steps: int, multiprocessors: int) -> int:
    """Into how many parts K is split: a power of two, so that two programs a multiprocessor have work at most."""
    parts = 1
    while parts < _MOST_SPLITS and 2 * parts * tiles <= 2 * multiprocessors and steps >= 2 * parts * _LEAST_STEPS:
        parts *= 2
    return parts


def _multiply(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None,
    scale_result: torch.Tensor | None,
    out: torch.Tensor,
    wanted: str,
    group: int,
) -> None:
    a, b = readable(a, b)
    (rows, terms), channels = a.shape, b.shape[0]
    target = target_of(a)
    chosen = configuration(_FAMILY, target.capability, wanted)
    tiles = -(-rows // chosen["BLOCK_M"]) * -(-channels // chosen["BLOCK_N"])
    steps = -(-terms // chosen["BLOCK_K"])
    parts = splits(tiles, steps, target.multiprocessors)
    largest = torch.finfo(out.dtype).max if out.dtype in _FP8 else None
    # A scale of all rows is read for each of them.
    stride_scale_a = scale_a.stride(0) if scale_a.numel() > 1 else 0
    stride_scale_b = scale_b.stride(0) if scale_b.numel() > 1 else 0
    stride_bias = bias.stride(0) if bias is not None else 0
    partial = out if parts == 1 else out.new_empty((parts, rows, channels), dtype=torch.float32)
    launch(
        product,
        (tiles, parts),
        a=a,
        b=b,
        scale_a=scale_a,
        scale_b=scale_b,
        bias=bias,
        scale_result=scale_result,
        out=partial,
        M=rows,
        N=channels,
        K=terms,
        steps=-(-steps // parts),
        stride_a=a.stride(0),
        stride_b=b.stride(0),
        stride_scale_a=stride_scale_a,
        stride_scale_a_group=scale_a.stride(1) if group else 0,
        stride_scale_b=stride_scale_b,
        stride_scale_b_group=scale_b.stride(1) if group else 0,
        stride_bias=stride_bias,
        GROUP=group,
        LARGEST=largest,
        SPLIT=parts > 1,
        **chosen,
    )
    if parts > 1:
        ending: dict[str, Any] = dict(configuration(_FAMILY, target.capability, "sum of parts"))
        launch(
            summation,
            (rows, -(-channels // ending["BLOCK_N"])),
            partial=partial,
            scale_a=scale_a,
            scale_b=scale_b,
            bias=bias,
            scale_result=scale_result,
            out=out,
            M=rows,
            N=channels,
            stride_scale_a=stride_scale_a,
            stride_scale_b=stride_scale_b,
            stride_bias=stride_bias,
            GROUP=group,
            LARGEST=largest,
            SPLITS=parts,
            **ending,
        )


def readable(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both as the kernel reads them: rows of unit stride, which tensor cores ask for; what lies otherwise is copied.

    With many rows both are copied too, with zeros up to a multiple of 16 columns, if either's rows do not start at
    multiples of 16 bytes: loads byte by byte would take longer, and more registers than there are.
    """
    if aligned(a, b):
        return a, b
    if a.shape[0] > _FEW:
        return _padded(a), _padded(b)
    return _with_unit_stride(a), _with_unit_stride(b)


def aligned(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether rows have unit stride, start at multiples of 16 bytes and end there."""
    return all(
        each.stride(1) == 1 and not (each.shape[1] % _WIDE or each.stride(0) % _WIDE or each.storage_offset() % _WIDE)
        for each in (a, b)
    )


def _with_unit_stride(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(1) == 1 else x.contiguous()


def _padded(x: torch.Tensor) -> torch.Tensor:
    columns = -(-x.shape[1] // _WIDE) * _WIDE
    copy = torch.zeros((x.shape[0], columns), dtype=torch.uint8, device=x.device)
    copy[:, : x.shape[1]] = x.view(torch.uint8)
    return copy.view(x.dtype)
