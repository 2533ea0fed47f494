"""Products of int8 codes with int8 codes, in plain torch: the sums are exact.

Products of codes are at most 2**14, so 1024 of them make at most 2**24 whatever their order, and float32 holds every
integer up to there. So the product of float32 matrices is that of the integers, 1024 columns at a time, even where
torch may round operands to TF32 or bfloat16, which hold every code. On CPUs without instructions for int8 this is many
times as fast as `torch._int_mm`.
"""

from __future__ import annotations

from typing import Final

import torch

from policyquant.kernels.cpu.scaled_mm import finish, tiled

EXACT_COLUMNS: Final = 1024
MOST_COLUMNS: Final = 65536
"""(a - zero point) · b is at most 255 · 128, and so many of them fit in int32."""


def check(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None,
    zero_point: torch.Tensor | None,
    weight_sums: torch.Tensor | None,
) -> None:
    """Refuse what does not belong together.

    Raises:
        ValueError: a shape or a dtype is not as `scaled_int8_mm` says.
    """
    if a.dtype != torch.int8 or b.dtype != torch.int8:
        raise ValueError(f"scaled_int8_mm: a is {a.dtype} and b {b.dtype}, expected int8")
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise ValueError(f"scaled_int8_mm: a is {list(a.shape)} and b {list(b.shape)}, expected [M, K] and [N, K]")
    if a.shape[1] > MOST_COLUMNS:
        raise ValueError(f"scaled_int8_mm: K is {a.shape[1]}, and beyond {MOST_COLUMNS} sums may not fit in int32")
    rows, channels = a.shape[0], b.shape[0]
    _check_shape("scale_a", scale_a, rows)
    _check_shape("scale_b", scale_b, channels)
    if bias is not None and tuple(bias.shape) != (channels,):
        raise ValueError(f"scaled_int8_mm: the bias is {list(bias.shape)}, expected [{channels}]")
    if (zero_point is None) != (weight_sums is None):
        raise ValueError("scaled_int8_mm: zero_point and weight_sums belong together, found one of them")
    if zero_point is None or weight_sums is None:
        return
    _check_shape("zero_point", zero_point, rows)
    if tuple(weight_sums.shape) != (channels,):
        raise ValueError(f"scaled_int8_mm: weight_sums is {list(weight_sums.shape)}, expected [{channels}]")
    if zero_point.dtype != torch.int32 or weight_sums.dtype != torch.int32:
        found = f"{zero_point.dtype} and {weight_sums.dtype}"
        raise ValueError(f"scaled_int8_mm: zero_point and weight_sums are {found}, expected int32")


def _check_shape(what: str, found: torch.Tensor, rows: int) -> None:
    if (found.numel() != 1 or found.ndim > 2) and tuple(found.shape) != (rows, 1):
        raise ValueError(f"scaled_int8_mm: {what} is {list(found.shape)}, expected [1] or [{rows}, 1]")


def scaled_int8_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None,
    zero_point: torch.Tensor | None,
    weight_sums: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """((a - zero_point) @ b.T) · scale_a · scale_b.T + bias, rounded once to `out_dtype`."""
    check(a, b, scale_a, scale_b, bias, zero_point, weight_sums)
    sums = exact_product(a, b)
    if zero_point is not None and weight_sums is not None:
        sums = sums.sub_(zero_point * weight_sums)
    return finish(sums.float().mul_(scale_a), scale_b, bias, out_dtype)


def exact_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a @ b.T in int32, of int8."""
    sums = torch.zeros((a.shape[0], b.shape[0]), dtype=torch.int32, device=a.device)
    for start in range(0, a.shape[1], EXACT_COLUMNS):
        columns = slice(start, start + EXACT_COLUMNS)
        sums += tiled(a[:, columns].float(), b[:, columns], torch.Tensor.float).int()
    return sums
