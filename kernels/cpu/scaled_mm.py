"""Products with 8-bit weights, on a CPU: the weight is decoded a tile of rows at a time, and sums are float32."""

from __future__ import annotations

from collections.abc import Callable

import torch

from policyquant.kernels.cpu.quantize import SMALLEST_SCALE

TILE_ELEMENTS = 4 * 1024 * 1024
"""Of a decoded float32 tile: 16 MiB."""

GROUP = 128
"""Columns that share a scale, and rows of a weight that do, where scales belong to blocks."""

_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_Decode = Callable[[torch.Tensor], torch.Tensor]


def scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None,
    scale_result: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """(a @ b.T) · scale_a · scale_b.T + bias, rounded once to `out_dtype`."""
    values, decode = _decoded(a, b)
    return finish(tiled(values, b, decode) * scale_a, scale_b, bias, out_dtype, scale_result)


def block_scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None,
    scale_result: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """Σ over groups of 128 columns of (a @ b.T of the group) · (scale_a · scale_b.T) + bias, rounded once."""
    values, decode = _decoded(a, b)
    sums = torch.zeros((a.shape[0], b.shape[0]), dtype=torch.float32, device=a.device)
    for group, start in enumerate(range(0, a.shape[1], GROUP)):
        columns = slice(start, start + GROUP)
        by_channel = scale_b[:, group].repeat_interleave(GROUP)[: b.shape[0]]
        product = values[:, columns] @ decode(b[:, columns]).T
        sums += product.mul_(scale_a[:, group, None] * by_channel)
    return _rounded(sums, bias, out_dtype, scale_result)


def _decoded(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, _Decode]:
    """The values of a, and what decodes b so that the product is right."""
    if b.dtype == torch.float8_e4m3fn:
        # The fast decode leaves a factor of 2**-8; a power of two moves to the other side without rounding.
        return a.float() * 256.0, decode_e4m3fn
    return a.float(), torch.Tensor.float


def tiled(a: torch.Tensor, b: torch.Tensor, decode: _Decode) -> torch.Tensor:
    """a @ decode(b).T in float32."""
    sums = torch.empty((a.shape[0], b.shape[0]), dtype=torch.float32, device=a.device)
    rows = max(1, TILE_ELEMENTS // max(1, b.shape[1]))
    for start in range(0, b.shape[0], rows):
        sums[:, start : start + rows] = a @ decode(b[start : start + rows]).T
    return sums


def decode_e4m3fn(q: torch.Tensor) -> torch.Tensor:
    """Values · 2**-8, exactly, of codes that are not NaN: sign, exponent and mantissa moved into float16's places."""
    bits = q.view(torch.int8).to(torch.int16)
    bits.mul_(128).bitwise_and_(-16385)
    return bits.view(torch.float16).float()


def finish(
    sums: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype,
    scale_result: torch.Tensor | None = None,
) -> torch.Tensor:
    """Apply the weight's scale ([1] or [N, 1]) and the bias in float32, then round."""
    return _rounded(sums * scale.reshape(-1), bias, out_dtype, scale_result)


def _rounded(
    sums: torch.Tensor, bias: torch.Tensor | None, out_dtype: torch.dtype, scale_result: torch.Tensor | None
) -> torch.Tensor:
    if bias is not None:
        sums = sums + bias.float()
    if scale_result is not None:
        sums = sums / scale_result.clamp(min=SMALLEST_SCALE)
    if out_dtype in _FP8:
        largest = torch.finfo(out_dtype).max
        sums = sums.clamp(-largest, largest)
    return sums.to(out_dtype)
