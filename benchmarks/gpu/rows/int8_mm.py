"""INT8 with INT8, beside torch's own product of integers and BF16."""

from __future__ import annotations

import torch

from benchmarks.gpu.row import Row
from policyquant.kernels import ops


def rows(tiny: bool) -> list[Row]:
    """Weights of a 7B model; one token to prefill."""
    return [_row(1, 64, 256)] if tiny else [_row(m, n, k) for m in (1, 16, 2048) for n, k in ((4096, 14336),)]


def _row(m: int, n: int, k: int) -> Row:
    def inputs(device: str) -> list[torch.Tensor]:
        a = torch.randint(-127, 128, (m, k), device=device, dtype=torch.int8)
        b = torch.randint(-127, 128, (n, k), device=device, dtype=torch.int8)
        return [a, b, torch.rand(m, 1, device=device), torch.rand(n, 1, device=device)]

    return Row(
        "scaled_int8_mm",
        f"{m} × {n} × {k}",
        inputs,
        lambda given: ops.scaled_int8_mm(*given),
        ("scaled_int8_mm",),
        n * k + m * k + 2 * m * n,
        2 * m * n * k,
        {"torch._int_mm": lambda given: torch._int_mm(given[0], given[1].t())} if m > 16 else {},
        capability=(8, 0),
    )
