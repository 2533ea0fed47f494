"""Encoding with one scale for a tensor or a token."""

from __future__ import annotations

import torch

from benchmarks.gpu.row import Bar, Row
from policyquant.kernels import ops

MIB = 1024 * 1024


def rows(tiny: bool) -> list[Row]:
    """From small to 64 MiB and more of BF16."""
    shapes = [(3, 64)] if tiny else [(1, 4096), (128, 4096), (8192, 4096), (16384, 8192)]
    return [row for tokens, width in shapes for row in _rows(tokens, width)]


def _rows(tokens: int, width: int) -> list[Row]:
    elements, large = tokens * width, tokens * width * 2 >= 64 * MIB
    shape = f"{tokens} × {width}"

    def inputs(device: str) -> list[torch.Tensor]:
        return [torch.randn(tokens, width, device=device, dtype=torch.bfloat16), torch.ones(1, device=device)]

    def torch_static(given: list[torch.Tensor]) -> torch.Tensor:
        x, scale = given
        return (x.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn)

    def bars(at_least: float) -> tuple[Bar, ...]:
        return (Bar("copy", at_least),) if large else ()

    return [
        Row(
            "static_scaled_fp8_quant",
            shape,
            inputs,
            lambda given: ops.static_scaled_fp8_quant(*given),
            ("static_scaled_fp8_quant",),
            3 * elements,
            baselines={"eager torch": torch_static},
            bars=bars(0.85),
        ),
        Row(
            "per_token_scaled_fp8_quant",
            shape,
            inputs,
            lambda given: ops.per_token_scaled_fp8_quant(given[0]),
            ("per_token_scaled_fp8_quant",),
            3 * elements + 4 * tokens,
            bars=bars(0.85),
        ),
        Row(
            "dynamic_scaled_fp8_quant",
            shape,
            inputs,
            lambda given: ops.dynamic_scaled_fp8_quant(given[0]),
            ("dynamic_scaled_fp8_quant",),
            5 * elements,
            bars=bars(0.80),
        ),
    ]
