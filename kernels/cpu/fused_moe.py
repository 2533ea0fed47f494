"""A mixture of experts in plain torch, on any device: nothing waits for a GPU."""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from policyquant.kernels.cpu import quantize
from policyquant.kernels.cpu.activation import gated
from policyquant.kernels.cpu.grouped_mm import grouped_scaled_mm
from policyquant.kernels.cpu.routing import local_experts
from policyquant.kernels.cpu.scaled_mm import GROUP


def fused_moe(
    x: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    w13_scale: torch.Tensor,
    w2_scale: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    activation: str,
    quantization: str,
    x_scale: torch.Tensor | None,
    intermediate_scale: torch.Tensor | None,
    scale_ub: float | None,
    expert_map: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """Weighted sums of the experts' results."""
    (tokens, choices), experts = topk_ids.shape, w13.shape[0]
    local = local_experts(topk_ids.reshape(-1), experts, expert_map)
    order = local.argsort(stable=True)
    counts = torch.zeros(experts + 1, dtype=torch.int64, device=x.device)
    counts.scatter_add_(0, local, torch.ones_like(local))
    offsets = counts[:-1].cumsum(0).int()
    owners = local[order].clamp(max=experts - 1)

    rows = order // choices
    if x.dtype == w13.dtype:
        assert x_scale is not None
        codes, scale = x[rows], x_scale if x_scale.numel() == 1 else x_scale[rows]
    elif quantization == "tensor":
        codes, scale = _encode(x[rows], quantization, x_scale, owners, None, w13.dtype)
    else:
        codes, scale = (each[rows] for each in _encode(x, quantization, None, owners, scale_ub, w13.dtype))
    gate_up = grouped_scaled_mm(codes, w13, scale, w13_scale, offsets, None, out_dtype)
    codes, scale = _encode(gated(gate_up, activation), quantization, intermediate_scale, owners, scale_ub, w2.dtype)
    by_expert = grouped_scaled_mm(codes, w2, scale, w2_scale, offsets, None, out_dtype)

    each = torch.empty_like(by_expert)
    each[order] = by_expert
    weights = torch.where(local.reshape(tokens, choices) < experts, topk_weights, 0.0)
    results = each.view(tokens, choices, each.shape[-1]).unbind(1)
    total = results[0] * weights[:, :1]
    for choice in range(1, choices):
        total = total + results[choice] * weights[:, choice : choice + 1]
    return total.to(out_dtype)


def _encode(
    x: torch.Tensor,
    quantization: str,
    static: torch.Tensor | None,
    owners: torch.Tensor,
    scale_ub: float | None,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of rows; `owners` are the experts whose static scales they have."""
    if quantization == "tensor":
        assert static is not None
        # Products with a scale below 2**-126 use what the codes were made with.
        scale = static.clamp(min=quantize.SMALLEST_SCALE)
        scale = scale if scale.numel() == 1 else scale[owners][:, None]
        return quantize.static_scaled_fp8_quant(x, scale, dtype), scale
    if quantization == "token":
        return quantize.per_token_scaled_fp8_quant(x, scale_ub, dtype)
    columns = x.shape[1]
    groups = pad(x, (0, -columns % GROUP)).reshape(x.shape[0], -(-columns // GROUP), GROUP)
    codes, scale = quantize.per_token_scaled_fp8_quant(groups, scale_ub, dtype)
    return codes.flatten(1)[:, :columns], scale[..., 0]
