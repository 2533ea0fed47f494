"""BF16 activations with FP8 weights, beside BF16 weights."""

from __future__ import annotations

import torch

from benchmarks.gpu.row import Bar, Row
from policyquant.kernels import ops


def rows(tiny: bool) -> list[Row]:
    """Weights of a 7B model; one token to prefill."""
    if tiny:
        return [_row(1, 64, 256)]
    return [_row(m, n, k) for m in (1, 16, 256, 2048) for n, k in ((4096, 14336), (28672, 4096))]


def _row(m: int, n: int, k: int) -> Row:
    def inputs(device: str) -> list[torch.Tensor]:
        x = torch.randn(m, k, device=device, dtype=torch.bfloat16)
        weight = torch.randn(n, k, device=device).to(torch.float8_e4m3fn)
        return [x, weight, torch.rand(n, 1, device=device), torch.randn(n, k, device=device, dtype=torch.bfloat16)]

    return Row(
        "fp8_weight_only_mm",
        f"{m} × {n} × {k}",
        inputs,
        lambda given: ops.fp8_weight_only_mm(*given[:3]),
        ("fp8_weight_only_mm",),
        n * k + 2 * m * k + 2 * m * n,
        2 * m * n * k,
        {"bf16": lambda given: given[0] @ given[3].t()},
        (Bar("bf16", 1.6),) if m <= 16 else (Bar("bf16", 0.75),) if m >= 256 else (),
        capability=(8, 0),
    )
