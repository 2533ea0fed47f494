"""Products with 8-bit weights and activations as they are, on a CPU; sums are float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch

from policyquant.kernels.cpu.scaled_mm import decode_e4m3fn, finish, tiled

BLOCK: Final = 128
"""Rows and columns of a weight that share a scale, where scales belong to blocks."""

_CODES: Final = {
    "fp8_weight_only_mm": (torch.float8_e4m3fn, torch.float8_e5m2),
    "int8_weight_only_mm": (torch.int8,),
}


def check(name: str, x: torch.Tensor, q: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None) -> None:
    """Refuse what does not belong together, on behalf of the operator `name`.

    Raises:
        ValueError: a shape or a dtype is not as the operator says.
    """
    if q.dtype not in _CODES[name]:
        raise ValueError(f"{name}: q is {q.dtype}, expected {' or '.join(map(str, _CODES[name]))}")
    if x.ndim != 2 or q.ndim != 2 or x.shape[1] != q.shape[1]:
        raise ValueError(f"{name}: x is {list(x.shape)} and q {list(q.shape)}, expected [M, K] and [N, K]")
    rows, columns = q.shape
    if scale.numel() != 1 and tuple(scale.shape) != (rows, 1) and not by_block(q, scale):
        blocks = [-(-rows // BLOCK), -(-columns // BLOCK)]
        raise ValueError(f"{name}: the scale is {list(scale.shape)}, expected [1], [{rows}, 1] or {blocks}")
    if bias is not None and tuple(bias.shape) != (rows,):
        raise ValueError(f"{name}: the bias is {list(bias.shape)}, expected [{rows}]")


def by_block(q: torch.Tensor, scale: torch.Tensor) -> bool:
    """Whether the scale has an entry for each block of q, and more than one for a row or a column of blocks."""
    if scale.ndim != 2 or scale.shape[0] * scale.shape[1] == 1 or tuple(scale.shape) == (q.shape[0], 1):
        return False
    return tuple(scale.shape) == (-(-q.shape[0] // BLOCK), -(-q.shape[1] // BLOCK))


def fp8_weight_only_mm(
    x: torch.Tensor, q: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None, out_dtype: torch.dtype
) -> torch.Tensor:
    """x @ (q · scale).T + bias, rounded once to `out_dtype`."""
    check("fp8_weight_only_mm", x, q, scale, bias)
    return _product(x, q, scale, bias, out_dtype, _values if q.dtype == torch.float8_e4m3fn else torch.Tensor.float)


def int8_weight_only_mm(
    x: torch.Tensor, q: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None, out_dtype: torch.dtype
) -> torch.Tensor:
    """(x @ q.T) · scale.T + bias, rounded once to `out_dtype`."""
    check("int8_weight_only_mm", x, q, scale, bias)
    return _product(x, q, scale, bias, out_dtype, torch.Tensor.float)


def _values(q: torch.Tensor) -> torch.Tensor:
    # The factor that the fast decode leaves is made good here: behind the sum, products of subnormal activations would
    # have lost bits, and on the activations, large ones would overflow.
    return decode_e4m3fn(q).mul_(256.0)


def _product(
    x: torch.Tensor,
    q: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype,
    decode: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    wide = x.float()
    if not by_block(q, scale):
        return finish(tiled(wide, q, decode), scale, bias, out_dtype)
    sums = torch.zeros((x.shape[0], q.shape[0]), dtype=torch.float32, device=x.device)
    for number, start in enumerate(range(0, q.shape[1], BLOCK)):
        columns = slice(start, start + BLOCK)
        part = tiled(wide[:, columns], q[:, columns], decode)
        of_rows = scale[:, number].repeat_interleave(BLOCK)[: q.shape[0]]
        sums.addcmul_(part, of_rows)
    return (sums if bias is None else sums.add_(bias.float())).to(out_dtype)
