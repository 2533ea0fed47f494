"""Encoding to FP8 with a scale for each group along a row or for each block of a weight, and back."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from policyquant.kernels.reference.formats import FP8_FORMATS, decode, encode_fp8, quotient, scales


def group_fp8_quant(
    x: torch.Tensor,
    group_size: int = 128,
    column_major: bool = False,
    power_of_two: bool = False,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of x [..., K] and scales [..., ceil(K / group_size)]; the last group may be shorter.

    Where the scales lie, `column_major`, does not change them.
    """
    codes, scale = block_fp8_quant(x.unsqueeze(-2), (1, group_size), power_of_two, dtype)
    return codes.squeeze(-2), scale.squeeze(-2)


def block_fp8_quant(
    w: torch.Tensor,
    block: Sequence[int] = (128, 128),
    power_of_two: bool = False,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of w [..., N, K] and scales [..., ceil(N / block[0]), ceil(K / block[1])]; the last may be smaller."""
    *batch, n, k = w.shape
    scale = torch.empty(*batch, -(-n // block[0]), -(-k // block[1]), device=w.device)
    for i in range(scale.shape[-2]):
        for j in range(scale.shape[-1]):
            part = w[..., i * block[0] : (i + 1) * block[0], j * block[1] : (j + 1) * block[1]]
            scale[..., i, j] = scales(part.flatten(-2), FP8_FORMATS[dtype].largest).squeeze(-1)
    if power_of_two:
        # scale = significand · 2**exponent with 1/2 ≤ significand < 1.
        significand, exponent = torch.frexp(scale.double())
        scale = torch.ldexp(torch.ones_like(significand), exponent - (significand == 0.5).int()).float()
    return encode_fp8(quotient(w, _spread(scale, block, w.shape)), dtype), scale


def dequantize_blocks(q: torch.Tensor, scale: torch.Tensor, block: Sequence[int] = (128, 128)) -> torch.Tensor:
    """q · scale, of q [..., N, K] and scales [..., ceil(N / block[0]), ceil(K / block[1])].

    The operator rounds it to float32, then to its dtype.
    """
    return decode(q) * _spread(scale, block, q.shape).double()


def _spread(scale: torch.Tensor, block: Sequence[int], shape: torch.Size) -> torch.Tensor:
    """Each block's scale at each of its elements."""
    every = scale.repeat_interleave(block[0], dim=-2).repeat_interleave(block[1], dim=-1)
    return every[..., : shape[-2], : shape[-1]]
