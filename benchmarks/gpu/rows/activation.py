"""Gated activations that encode what they return."""

from __future__ import annotations

import torch

from benchmarks.gpu.row import Bar, Row
from policyquant.kernels import ops


def rows(tiny: bool) -> list[Row]:
    """The widths of 7B and 70B models; decoding and prefill."""
    shapes = [(3, 64)] if tiny else [(16, 14336), (8192, 14336), (4096, 28672)]
    return [row for tokens, width in shapes for row in _rows(tokens, width)]


def _rows(tokens: int, width: int) -> list[Row]:
    elements, large = tokens * width, tokens * width >= 2**25
    shape = f"{tokens} × 2·{width}"

    def inputs(device: str) -> list[torch.Tensor]:
        x = torch.randn(tokens, 2 * width, device=device, dtype=torch.bfloat16)
        return [x, torch.full((1,), 0.01, device=device)]

    def bars(unfused: bool) -> tuple[Bar, ...]:
        return (Bar("copy", 0.80), *((Bar("unfused", 1.6),) if unfused else ())) if large else ()

    return [
        Row(
            "silu_and_mul_quant, static",
            shape,
            inputs,
            lambda given: ops.silu_and_mul_quant(*given),
            ("gated_activation_static_fp8_quant",),
            5 * elements,
            baselines={"unfused": lambda given: ops.static_scaled_fp8_quant(ops.silu_and_mul(given[0]), given[1])},
            bars=bars(True),
        ),
        Row(
            "silu_and_mul_quant, per token",
            shape,
            inputs,
            lambda given: ops.silu_and_mul_quant(given[0]),
            ("gated_activation_per_token_fp8_quant",),
            5 * elements + 4 * tokens,
            baselines={"unfused": lambda given: ops.per_token_scaled_fp8_quant(ops.silu_and_mul(given[0]))},
            bars=bars(True),
        ),
        Row(
            "silu_and_mul_quant, per group",
            shape,
            inputs,
            lambda given: ops.silu_and_mul_quant(given[0], group_size=128),
            ("gated_activation_group_fp8_quant",),
            5 * elements + elements // 32,
            baselines={"unfused": lambda given: ops.group_fp8_quant(ops.silu_and_mul(given[0]), 128)},
            bars=bars(True),
        ),
        Row(
            "silu_and_mul",
            shape,
            inputs,
            lambda given: ops.silu_and_mul(given[0]),
            ("silu_and_mul",),
            6 * elements,
        ),
    ]
