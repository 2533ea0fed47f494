"""Products with 8-bit weights, on a CPU: the weight is decoded a tile of rows at a time, and sums are float32."""

from __future__ import annotations

from collections.abc import Callable

import torch

TILE_ELEMENTS = 4 * 1024 * 1024
"""Of a decoded float32 tile: 16 MiB."""


def scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """(a @ b.T) · scale_a · scale_b.T + bias, rounded once to `out_dtype`."""
    if b.dtype == torch.float8_e4m3fn:
        # The fast decode leaves a factor of 2**-8; a power of two moves to the other side without rounding.
        sums = tiled(a.float() * 256.0, b, decode_e4m3fn)
    else:
        sums = tiled(a.float(), b, torch.Tensor.float)
    return finish(sums * scale_a, scale_b, bias, out_dtype)


def tiled(a: torch.Tensor, b: torch.Tensor, decode: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
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


def finish(sums: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None, out_dtype: torch.dtype) -> torch.Tensor:
    """Apply the weight's scale ([1] or [N, 1]) and the bias in float32, then round."""
    sums = sums * scale.reshape(-1)
    if bias is not None:
        sums = sums + bias.float()
    return sums.to(out_dtype)
