"""Encoding with a scale for each group of 128 along a row, and for each block of a weight."""

from __future__ import annotations

import torch

from benchmarks.gpu.row import Bar, Row
from policyquant.kernels import ops


def rows(tiny: bool) -> list[Row]:
    """Activations of DeepSeek-V3's width, with scales in rows and in columns; one of its weights."""
    shapes = [(3, 256)] if tiny else [(16, 7168), (2048, 7168), (16384, 7168)]
    made = [row for tokens, width in shapes for row in _groups(tokens, width)]
    out_features, in_features = (130, 256) if tiny else (7168, 18432)

    def weight(device: str) -> torch.Tensor:
        return torch.randn(out_features, in_features, device=device, dtype=torch.bfloat16)

    bars = (Bar("copy", 0.5),)
    size = 3 * out_features * in_features
    shape = f"{out_features} × {in_features}"
    made.append(Row("block_fp8_quant", shape, weight, ops.block_fp8_quant, ("block_fp8_quant",), size, bars=bars))
    return made


def _groups(tokens: int, width: int) -> list[Row]:
    elements = tokens * width
    size, large = 3 * elements + elements // 32, elements >= 2**25

    def inputs(device: str) -> torch.Tensor:
        return torch.randn(tokens, width, device=device, dtype=torch.bfloat16)

    bars = (Bar("copy", 0.80),) if large else ()
    return [
        Row(
            f"group_fp8_quant, scales in {'columns' if column_major else 'rows'}",
            f"{tokens} × {width}",
            inputs,
            lambda x, column_major=column_major: ops.group_fp8_quant(x, 128, column_major=column_major),
            ("group_fp8_quant",),
            size,
            bars=bars,
        )
        for column_major in (False, True)
    ]
