"""A mixture of experts as one operator, and its grouped products, beside torch's grouped products in FP8 and BF16."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu.row import Bar, Row
from policyquant.kernels import ops

E4M3 = torch.float8_e4m3fn
GROUPED, SCALED_GROUPED = "torch._grouped_mm, bf16", "torch._scaled_grouped_mm"
_grouped_mm: Any = getattr(torch, "_grouped_mm", None)
_scaled_grouped_mm: Any = getattr(torch, "_scaled_grouped_mm", None)


def rows(tiny: bool) -> list[Row]:
    """Mixtral's experts (8 of which 2) and a part of DeepSeek-V3's (32 of which 8, as one of eight GPUs has them)."""
    if tiny:
        return [_layer(3, 4, 2, 64, 128), _product(8, 2, 64, 128)]
    layers = [_layer(t, 8, 2, 4096, 14336) for t in (1, 4, 16, 4096)] + [_layer(t, 32, 8, 7168, 2048) for t in (16,)]
    return [*layers, _product(8192, 8, 28672, 4096), _product(8192, 8, 4096, 14336)]


def _codes(*shape: int, device: str) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device=device).normal_().to(E4M3)


def _layer(tokens: int, experts: int, k: int, hidden: int, intermediate: int) -> Row:
    def inputs(device: str) -> dict[str, Any]:
        ids = torch.stack([torch.randperm(experts, device=device)[:k] for _ in range(min(tokens, 64))]).int()
        ids = ids.repeat(-(-tokens // ids.shape[0]), 1)[:tokens].contiguous()
        order = ids.reshape(-1).sort(stable=True).indices
        w13 = _codes(experts, 2 * intermediate, hidden, device=device)
        w2 = _codes(experts, hidden, intermediate, device=device)
        return {
            "x": torch.randn(tokens, hidden, dtype=torch.bfloat16, device=device),
            "weights": torch.rand(tokens, k, device=device),
            "ids": ids,
            "w13": w13,
            "w2": w2,
            "w13_scale": torch.rand(experts, 2 * intermediate, 1, device=device) / 1e3,
            "w2_scale": torch.rand(experts, hidden, 1, device=device) / 1e3,
            "w13_bf16": w13.bfloat16(),
            "w2_bf16": w2.bfloat16(),
            "order": order,
            "offsets": torch.bincount(ids.reshape(-1).long(), minlength=experts).cumsum(0).int(),
        }

    active = experts * (1 - (1 - k / experts) ** tokens)
    prefill = tokens * k / experts >= 256
    return Row(
        "fused_moe, channel × token",
        f"{tokens} tokens, {k} of {experts}, {hidden} × {intermediate}",
        inputs,
        lambda given: ops.fused_moe(
            given["x"], given["w13"], given["w2"], given["w13_scale"], given["w2_scale"], given["weights"], given["ids"]
        ),
        ("fused_moe",),
        int(active * 3 * intermediate * hidden) + 4 * tokens * hidden,
        6 * tokens * k * intermediate * hidden,
        {} if _grouped_mm is None else {GROUPED: _bf16_layer},
        (Bar(GROUPED, 1.4),) if prefill else (Bar("copy", 0.55),) if tokens <= 16 else (),
    )


def _bf16_layer(given: Any) -> torch.Tensor:
    """Sorted by expert, two grouped products, and back, with the order known beforehand."""
    k = given["ids"].shape[1]
    x = given["x"][given["order"] // k]
    gate, up = _grouped_mm(x, given["w13_bf16"].transpose(1, 2), given["offsets"]).chunk(2, -1)
    y = _grouped_mm(torch.nn.functional.silu(gate) * up, given["w2_bf16"].transpose(1, 2), given["offsets"])
    weighted = y * given["weights"].reshape(-1)[given["order"], None].to(y.dtype)
    return torch.zeros_like(given["x"]).index_add_(0, given["order"] // k, weighted)


def _product(total: int, experts: int, n: int, k: int) -> Row:
    def inputs(device: str) -> list[torch.Tensor]:
        return [
            _codes(total, k, device=device),
            _codes(experts, n, k, device=device),
            torch.rand(total, 1, device=device),
            torch.rand(experts, n, 1, device=device),
            torch.arange(1, experts + 1, device=device, dtype=torch.int32) * (total // experts),
        ]

    baselines: dict[str, Callable[[Any], object]] = {} if _scaled_grouped_mm is None else {SCALED_GROUPED: _torch}
    return Row(
        "grouped_scaled_mm, channel × token",
        f"{total} rows, {experts} experts, {n} × {k}",
        inputs,
        lambda given: ops.grouped_scaled_mm(*given),
        ("grouped_scaled_mm",),
        total * k + experts * n * k + 2 * total * n,
        2 * total * n * k,
        baselines,
        (Bar(SCALED_GROUPED, 0.90),),
    )


def _torch(given: Any) -> object:
    a, b, scale_a, scale_b, offsets = given
    return _scaled_grouped_mm(
        a, b.transpose(1, 2), scale_a.reshape(-1), scale_b.squeeze(-1), offs=offsets, out_dtype=torch.bfloat16
    )
