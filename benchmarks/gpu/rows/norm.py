"""Norms, with and without the residual addition, that encode what they return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu.row import Bar, Row
from policyquant.kernels import ops

EPS = 1e-6


def rows(tiny: bool) -> list[Row]:
    """The widths of 7B and 70B models; decoding and prefill."""
    shapes = [(3, 64)] if tiny else [(16, 4096), (16384, 4096), (8192, 8192)]
    return [row for tokens, width in shapes for row in _rows(tokens, width)]


def _rows(tokens: int, width: int) -> list[Row]:
    elements, large = tokens * width, tokens * width >= 2**25
    shape = f"{tokens} × {width}"

    def inputs(device: str) -> dict[str, torch.Tensor]:
        x, residual = (torch.randn(tokens, width, device=device, dtype=torch.bfloat16) for _ in range(2))
        weight = torch.randn(width, device=device, dtype=torch.bfloat16)
        return {"x": x, "residual": residual, "weight": weight, "scale": torch.full((1,), 0.01, device=device)}

    quantizers: dict[str, tuple[dict[str, Any], Callable[[torch.Tensor, Any], object]]] = {
        "static": ({"scale": True}, lambda y, given: ops.static_scaled_fp8_quant(y, given["scale"])),
        "per_token": ({}, lambda y, given: ops.per_token_scaled_fp8_quant(y)),
        "group": ({"group_size": 128}, lambda y, given: ops.group_fp8_quant(y, 128)),
    }
    made = []
    for added in (False, True):
        for name, (keywords, quantize) in quantizers.items():
            made.append(
                Row(
                    f"{'fused_add_' if added else ''}rms_norm_quant, {name.replace('_', ' ')}",
                    shape,
                    inputs,
                    _fused(added, keywords),
                    (f"{'fused_add_' if added else ''}rms_norm_{name}_fp8_quant",),
                    (7 if added else 3) * elements + (elements // 32 if name == "group" else 0),
                    baselines={"unfused": _unfused(added, quantize)},
                    bars=(
                        (Bar("copy", 0.75 if added else 0.70), Bar("unfused", 1.35 if added else 1.8)) if large else ()
                    ),
                )
            )
    return made


def _fused(added: bool, keywords: dict[str, Any]) -> Callable[[Any], object]:
    def call(given: Any) -> object:
        chosen = {name: given["scale"] if name == "scale" else value for name, value in keywords.items()}
        if added:
            return ops.fused_add_rms_norm_quant(given["x"], given["residual"], given["weight"], EPS, **chosen)
        return ops.rms_norm_quant(given["x"], given["weight"], EPS, **chosen)

    return call


def _unfused(added: bool, quantize: Callable[[torch.Tensor, Any], object]) -> Callable[[Any], object]:
    def call(given: Any) -> object:
        if added:
            y, total = ops.fused_add_rms_norm(given["x"], given["residual"], given["weight"], EPS)
            return quantize(y, given), total
        return quantize(ops.rms_norm(given["x"], given["weight"], EPS), given)

    return call
