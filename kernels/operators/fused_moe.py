"""A mixture of experts from tokens to weighted sums, in FP8."""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

import torch

from policyquant.kernels import dispatch
from policyquant.kernels.cpu import fused_moe as plain
from policyquant.kernels.registration import define, like

_ops: Any = torch.ops.policyquant

Activation = Literal["silu", "gelu", "gelu_tanh"]
InputQuantization = Literal["token", "group", "tensor"]
_FP8: Final = (torch.float8_e4m3fn, torch.float8_e5m2)


def _fake(x: torch.Tensor, *inputs: Any) -> torch.Tensor:
    return like(x, tuple(x.shape), inputs[-1])


define(
    "fused_moe",
    "Tensor x, Tensor w13, Tensor w2, Tensor w13_scale, Tensor w2_scale, Tensor topk_weights, Tensor topk_ids,"
    " str activation, str quantization, Tensor? x_scale, Tensor? intermediate_scale, float? scale_ub,"
    " Tensor? expert_map, ScalarType out_dtype",
    {"out": "a"},
    plain.fused_moe,
    _fake,
    "out_dtype",
    implementations=(dispatch.triton("fused_moe", "fused_moe"),),
)


def fused_moe(
    x: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    w13_scale: torch.Tensor,
    w2_scale: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    activation: Activation = "silu",
    quantization: InputQuantization = "token",
    x_scale: torch.Tensor | None = None,
    intermediate_scale: torch.Tensor | None = None,
    scale_ub: float | None = None,
    expert_map: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """Σ over a token's choices of weight · w2[e] (act(gate) · up), with [gate | up] = w13[e] x.

    x and the intermediate act(gate) · up are quantized to the FP8 format of the weights. Both products, the activation
    and its product with up are rounded to `out_dtype` each; the sum is taken in float32 in the order of the choices and
    rounded once: the same in every run.

    Args:
        x: [T, H]; FP8 codes are taken as they are, with `x_scale` [1], [T, 1] or, for "group", [T, ⌈H / 128⌉].
        w13, w2: FP8 codes [E, 2I, H] and [E, H, I].
        w13_scale, w2_scale: as `grouped_scaled_mm` takes them.
        topk_weights, topk_ids: float32 and integers, [T, k]; ids of no expert here add nothing.
        quantization: "token": a scale for each row, at most `scale_ub`; "group": for 128 columns of a row, with weight
            scales of blocks; "tensor": `x_scale` and `intermediate_scale`, float32 [1] or [E], are given.
        expert_map: as `moe_align` takes it.

    Returns:
        [T, H] in `out_dtype`.

    Raises:
        ValueError: shapes do not go together, an argument is unknown, or a scale is missing.
    """
    experts, twice, hidden = w13.shape
    if tuple(w2.shape) != (experts, hidden, twice // 2) or twice % 2 or x.ndim != 2 or x.shape[1] != hidden:
        raise ValueError(
            f"fused_moe takes x [T, H], w13 [E, 2I, H] and w2 [E, H, I]; found {list(x.shape)}, {list(w13.shape)} and"
            f" {list(w2.shape)}"
        )
    if topk_weights.shape != topk_ids.shape or topk_ids.ndim != 2 or topk_ids.shape[0] != x.shape[0]:
        raise ValueError(
            f"fused_moe takes weights and ids [T, k] for {x.shape[0]} tokens; found {list(topk_weights.shape)} and"
            f" {list(topk_ids.shape)}"
        )
    for what, value, known in (
        ("activation", activation, get_args(Activation)),
        ("quantization", quantization, get_args(InputQuantization)),
    ):
        if value not in known:
            raise ValueError(f"fused_moe: {what} is one of {', '.join(known)}; found {value!r}")
    if (x.dtype in _FP8 or quantization == "tensor") and x_scale is None:
        raise ValueError("fused_moe: x_scale must be given with codes, and with quantization 'tensor'")
    if quantization == "tensor" and intermediate_scale is None:
        raise ValueError("fused_moe: intermediate_scale must be given with quantization 'tensor'")
    result: torch.Tensor = _ops.fused_moe.default(
        x, w13, w2, w13_scale, w2_scale, topk_weights, topk_ids, activation, quantization, x_scale,
        intermediate_scale, scale_ub, expert_map, out_dtype,
    )  # fmt: skip
    return result
