"""Products of FP8 with FP8, beside `torch._scaled_mm`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from benchmarks.gpu.row import Bar, Row
from policyquant.kernels import ops

E4M3 = torch.float8_e4m3fn
_scaled_mm: Any = torch._scaled_mm
TORCH, SLOW = "torch._scaled_mm", "torch._scaled_mm, slow accumulation"


def rows(tiny: bool) -> list[Row]:
    """Weights of a 7B model and of DeepSeek-V3; one token to a long prefill."""
    if tiny:
        return [row for m in (1, 17) for row in _rows(m, 64, 256)]
    few = [row for m in (1, 16, 64) for n, k in ((4096, 14336), (7168, 2048)) for row in _rows(m, n, k)]
    return few + [row for m, n, k in ((2048, 4096, 7168), (8192, 8192, 8192)) for row in _rows(m, n, k)]


def _codes(rows: int, columns: int, device: str) -> torch.Tensor:
    return torch.randn(rows, columns, device=device).clamp(-448, 448).to(E4M3)


def _rows(m: int, n: int, k: int) -> list[Row]:
    small, large = m <= 64, m >= 2048
    scales: Mapping[str, Callable[[str], tuple[torch.Tensor, torch.Tensor]]] = {
        "tensor": lambda device: (torch.rand(1, device=device), torch.rand(1, device=device)),
        "channel": lambda device: (torch.rand(m, 1, device=device), torch.rand(n, 1, device=device)),
        "block": lambda device: (
            torch.rand(-(-k // 128), m, device=device).t(),
            torch.rand(-(-n // 128), -(-k // 128), device=device),
        ),
    }
    made = []
    for name, make in scales.items():

        def inputs(device: str, make: Callable[[str], tuple[torch.Tensor, torch.Tensor]] = make) -> list[torch.Tensor]:
            return [_codes(m, k, device), _codes(n, k, device), *make(device)]

        baselines = {TORCH: _block if name == "block" else _torch(True)}
        if name != "block" and large:
            baselines[SLOW] = _torch(False)
        made.append(
            Row(
                f"scaled_mm, {name}",
                f"{m} × {n} × {k}",
                inputs,
                lambda given: ops.scaled_mm(*given),
                ("block_scaled_mm" if name == "block" else "scaled_mm",),
                m * k + n * k + 2 * m * n,
                2 * m * n * k,
                baselines,
                _bars(name, small, large),
            )
        )
    return made


def _bars(name: str, small: bool, large: bool) -> tuple[Bar, ...]:
    if small:
        return (Bar(TORCH, 1.6),) if name == "block" else (Bar(TORCH, 1.0), Bar("copy", 0.55))
    if not large:
        return ()
    if name == "block":
        return (Bar(TORCH, 0.65),)
    # Like beside like: sums that stay in the tensor cores, and sums that are taken out.
    return (Bar(TORCH, 0.90 if name == "tensor" else 0.92, by=("triton_fast_accum",)), Bar(SLOW, 1.0))


def _torch(fast: bool) -> Callable[[Any], object]:
    def call(given: Any) -> object:
        a, b, scale_a, scale_b = given
        by_row = scale_b.numel() > 1
        scale_a, scale_b = (scale_a, scale_b.t()) if by_row else (scale_a.reshape(()), scale_b.reshape(()))
        return _scaled_mm(a, b.t(), scale_a, scale_b, out_dtype=torch.bfloat16, use_fast_accum=fast)

    return call


def _block(given: Any) -> object:
    a, b, scale_a, scale_b = given
    # As cuBLAS takes it: rows padded to a multiple of 4 (which is part of its time only where M is no multiple).
    rows = -a.shape[0] % 4
    if rows:
        a = torch.nn.functional.pad(a.view(torch.uint8), (0, 0, 0, rows)).view(E4M3)
        scale_a = torch.nn.functional.pad(scale_a.t(), (0, rows)).t()
    return _scaled_mm(a, b.t(), scale_a, scale_b.t(), out_dtype=torch.bfloat16)[: a.shape[0] - rows]
