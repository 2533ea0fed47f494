"""Products of FP8 codes with FP8 weights of several experts, each with the rows that are its own."""

from __future__ import annotations

import torch

from policyquant.kernels.reference.formats import decode

_BLOCK = 128


def grouped_scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    offsets: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """(a · scale_a) @ (b[e] · scale_b[e]).T + bias[e] for each expert's rows; zeros behind the last.

    The operator rounds sums and products with scales to float32, the result once.
    """
    out = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64)
    start = 0
    for expert, end in enumerate(offsets.tolist()):
        values = decode(a) * of_columns(scale_a, a.shape[1])
        weight = decode(b[expert]) * of_blocks(scale_b[expert], b.shape[1], b.shape[2])
        rows = values[start:end] @ weight.T
        out[start:end] = rows if bias is None else rows + bias[expert].double()
        start = end
    return out


def of_columns(scale: torch.Tensor, columns: int) -> torch.Tensor:
    """[1], [T, 1] or [T, ⌈K / 128⌉] for each element of a row."""
    return scale.double() if scale.shape[-1] == 1 else scale.double()[:, torch.arange(columns) // _BLOCK]


def of_blocks(scale: torch.Tensor, channels: int, columns: int) -> torch.Tensor:
    """One expert's scales, [], [1], [N, 1] or [⌈N / 128⌉, ⌈K / 128⌉], for each element of its weight."""
    if scale.ndim < 2 or scale.shape == (channels, 1):
        return scale.double()
    return scale.double()[torch.arange(channels) // _BLOCK][:, torch.arange(columns) // _BLOCK]
