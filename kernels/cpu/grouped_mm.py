"""Products with the weights of several experts in plain torch, on any device: on a GPU, nothing waits for it."""

from __future__ import annotations

import torch

from policyquant.kernels.cpu.scaled_mm import GROUP, block_scaled_mm, scaled_mm


def of_blocks(scale_b: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether scales belong to blocks of b [E, N, K]: not to experts [E], [E, 1], nor to channels [E, N, 1]."""
    return scale_b.ndim == 3 and tuple(scale_b.shape[1:]) != (b.shape[1], 1)


def grouped_scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    offsets: torch.Tensor,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """Each expert's rows times its weight; zeros behind the last."""
    rows = a.shape[0]
    out = torch.zeros((rows, b.shape[1]), dtype=out_dtype, device=a.device)
    if a.device.type == "cpu":
        start = 0
        for expert, end in enumerate(offsets.tolist()):
            own, start = slice(start, min(end, rows)), max(start, min(end, rows))
            if own.stop > own.start:
                own_scale = scale_a[own] if scale_a.numel() > 1 else scale_a
                out[own] = _of_expert(expert, a[own], b, own_scale, scale_b, bias, out_dtype)
        return out
    row = torch.arange(rows, device=a.device)[:, None]
    begin = torch.zeros_like(offsets[:1])
    for expert in range(b.shape[0]):
        end = offsets[expert : expert + 1]
        result = _of_expert(expert, a, b, scale_a, scale_b, bias, out_dtype)
        out = torch.where((row >= begin) & (row < end), result, out)
        begin = torch.maximum(begin, end)
    return out


def _of_expert(
    expert: int,
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    own_bias = None if bias is None else bias[expert]
    if of_blocks(scale_b, b):
        by_group = scale_a.reshape(-1, scale_a.shape[-1]).expand(a.shape[0], -(-a.shape[1] // GROUP))
        return block_scaled_mm(a, b[expert], by_group, scale_b[expert], own_bias, None, out_dtype)
    return scaled_mm(a, b[expert], scale_a, scale_b[expert].reshape(-1, 1), own_bias, None, out_dtype)
