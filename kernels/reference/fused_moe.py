"""A mixture of experts from tokens to weighted sums, in FP8."""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from policyquant.kernels.reference.activation import gated
from policyquant.kernels.reference.formats import FP8_FORMATS, decode
from policyquant.kernels.reference.grouped_mm import of_blocks, of_columns
from policyquant.kernels.reference.quantize import per_token_scaled_fp8_quant, static_scaled_fp8_quant

_GROUP = 128


def fused_moe(
    x: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    w13_scale: torch.Tensor,
    w2_scale: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    activation: str = "silu",
    quantization: str = "token",
    x_scale: torch.Tensor | None = None,
    intermediate_scale: torch.Tensor | None = None,
    scale_ub: float | None = None,
    expert_map: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """Σ over choices of weight · w2[e] (act(gate) · up), token by token, float64.

    Products, act(gate) and its product with up are rounded to `out_dtype`, since that decides codes. The operator
    rounds the results of w2 too.
    """
    out = torch.zeros(x.shape, dtype=torch.float64)
    for token in range(x.shape[0]):
        for weight, chosen in zip(topk_weights[token].double(), topk_ids[token].tolist(), strict=True):
            known = len(w13) if expert_map is None else len(expert_map)
            expert = (chosen if expert_map is None else int(expert_map[chosen])) if 0 <= chosen < known else -1
            if not 0 <= expert < len(w13):
                continue
            row = x[token : token + 1]
            if x.dtype in FP8_FORMATS:
                assert x_scale is not None
                values = decode(row) * of_columns(x_scale if x_scale.ndim == 1 else x_scale[token][None], x.shape[1])
            else:
                values = _quantized(row, quantization, x_scale, expert, scale_ub, w13.dtype)
            gate_up = values @ (decode(w13[expert]) * of_blocks(w13_scale[expert], *w13.shape[1:])).T
            gate_up = gate_up.to(out_dtype)
            values = _quantized(
                gated(gate_up, activation), quantization, intermediate_scale, expert, scale_ub, w2.dtype
            )
            result = values @ (decode(w2[expert]) * of_blocks(w2_scale[expert], *w2.shape[1:])).T
            out[token] += weight * result[0]
    return out


def _quantized(
    x: torch.Tensor,
    quantization: str,
    static: torch.Tensor | None,
    expert: int,
    scale_ub: float | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """The values of codes times scales of one row [1, K]."""
    if quantization == "tensor":
        assert static is not None
        scale = (static if static.numel() == 1 else static[expert : expert + 1]).clamp(min=2.0**-126)
        return decode(static_scaled_fp8_quant(x, scale, dtype)) * scale.double()
    if quantization == "token":
        codes, scale = per_token_scaled_fp8_quant(x, scale_ub, dtype)
        return decode(codes) * scale.double()
    groups = pad(x, (0, -x.shape[1] % _GROUP)).reshape(-1, _GROUP)
    codes, scale = per_token_scaled_fp8_quant(groups, scale_ub, dtype)
    return (decode(codes) * scale.double()).reshape(1, -1)[:, : x.shape[1]]
