"""BF16 activations with 4-bit weights, beside BF16 weights."""

from __future__ import annotations

import torch

from benchmarks.gpu.row import Row
from policyquant.kernels import ops


def rows(tiny: bool) -> list[Row]:
    """Weights of a 7B model; one token to prefill."""
    return [_row(1, 64, 256)] if tiny else [_row(m, n, k) for m in (1, 16, 2048) for n, k in ((4096, 14336),)]


def _row(m: int, n: int, k: int) -> Row:
    def inputs(device: str) -> list[torch.Tensor]:
        weight = torch.randn(n, k, device=device, dtype=torch.bfloat16)
        return [torch.randn(m, k, device=device, dtype=torch.bfloat16), weight, *ops.int4_group_quant(weight)]

    return Row(
        "int4_weight_only_mm",
        f"{m} × {n} × {k}",
        inputs,
        lambda given: ops.int4_weight_only_mm(given[0], given[2], given[3]),
        ("int4_weight_only_mm",),
        n * k // 2 + 2 * m * k + 2 * m * n,
        2 * m * n * k,
        {"bf16": lambda given: given[0] @ given[1].t()},
        capability=(8, 0),
    )
