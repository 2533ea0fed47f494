"""Products of FP8 with FP8: few rows with K split, many rows; scales of rows and of blocks; every kind of result."""

from __future__ import annotations

from typing import Any

import torch

from proof.case import BF16, FP8, FP32, Case, Kernel, Launch, meta

N, K = 4096, 7168
"""Few enough channels for K to be split."""


def _inputs(m: int, blocks: bool, out: torch.dtype = BF16, bias: bool = False) -> tuple[Any, ...]:
    scales = (
        (meta(K // 128, m, dtype=FP32).t(), meta(N // 128, K // 128, dtype=FP32))
        if blocks
        else (meta(m, 1, dtype=FP32), meta(N, 1, dtype=FP32))
    )
    of_result = meta(1, dtype=FP32) if out == FP8 else None
    return meta(m, K, dtype=FP8), meta(N, K, dtype=FP8), *scales, meta(N) if bias else None, of_result, out


def _unaligned(m: int, blocks: bool) -> tuple[Any, ...]:
    a, b = (meta(rows, K - 3, dtype=FP8, pitch=K - 1, offset=1) for rows in (m, N - 3))
    scale_a = meta(m, K // 128, dtype=FP32) if blocks else meta(m, 1, dtype=FP32)
    scale_b = meta(N // 128, K // 128, dtype=FP32) if blocks else meta(N - 3, 1, dtype=FP32)
    return a, b, scale_a, scale_b, None, None, BF16


def _steps(launch: Launch) -> tuple[float]:
    return (float(launch.arguments["steps"]),)


_SCALED_STEPS = (
    "each step's sums leave tensor memory to be scaled, for which 8 TB/s give little time; wider tiles would leave"
    " multiprocessors without one"
)


def _product(m: int, narrow_loads: int, promotion: bool = True, waived: tuple[str, ...] = ()) -> Kernel:
    return Kernel(
        bytes=m * K + N * K + 2 * m * N,
        flops=2 * m * N * K,
        loops=_steps,
        matrix="fp8",
        promotion=promotion,
        narrow_loads=narrow_loads,
        waivers=dict.fromkeys(waived, _SCALED_STEPS),
    )


def _sum(m: int) -> Kernel:
    return Kernel(bytes=2 * 2 * 4 * m * N, narrow_loads=16)


# Sums of 10.0's tensor cores are wide enough as they are.
NARROW_SUMS, WIDE_SUMS = (89, 90), (100,)
ONE_TILE = dict.fromkeys(
    ("issue", "lsu", "alu", "fp32", "xu", "tensor", "spills@89"), "one tile, most of which is not there"
)
IN_LITTLE_TIME = ("issue@100", "lsu@100", "alu@100", "fp32@100")

CASES = [
    Case(
        "scaled_mm",
        "16 rows, K split",
        lambda: _inputs(16, False, bias=True),
        {"product": _product(16, 72), "summation": _sum(16)},
        architectures=NARROW_SUMS,
    ),
    Case(
        "scaled_mm",
        "16 rows, K split",
        lambda: _inputs(16, False, bias=True),
        {"product": _product(16, 72, promotion=False), "summation": _sum(16)},
        architectures=WIDE_SUMS,
    ),
    Case(
        "scaled_mm",
        "one row",
        lambda: _inputs(1, False),
        {"product": _product(1, 72, promotion=False), "summation": _sum(1)},
        quick=False,
    ),
    *(
        Case(
            operator,
            f"one row, one channel, {terms} columns",
            lambda terms=terms: (
                *(meta(1, terms, dtype=FP8), meta(1, terms, dtype=FP8)),
                *(meta(1, 1, dtype=FP32), meta(1, 1, dtype=FP32), None, None, BF16),
            ),
            {"product": Kernel(2 * terms, loops=_steps, matrix="fp8", narrow_loads=72, waivers=ONE_TILE)},
            aligned=False,
            quick=False,
        )
        for operator, terms in (("block_scaled_mm", 128), ("scaled_mm", 1))
    ),
    Case(
        "scaled_mm",
        "many rows",
        lambda: _inputs(8192, False),
        {"product": _product(8192, 72)},
        architectures=NARROW_SUMS,
    ),
    Case(
        "scaled_mm",
        "many rows",
        lambda: _inputs(8192, False),
        {"product": _product(8192, 72, promotion=False)},
        architectures=WIDE_SUMS,
    ),
    Case(
        "scaled_mm",
        "many rows, an FP8 result",
        lambda: _inputs(8192, False, FP8),
        {"product": _product(8192, 72, promotion=False)},
        quick=False,
    ),
    Case(
        "scaled_mm",
        "many rows, unaligned",
        lambda: _unaligned(8191, False),
        {"product": _product(8191, 999, promotion=False)},
        aligned=False,
    ),
    Case(
        "scaled_mm",
        "few rows, unaligned",
        lambda: _unaligned(3, False),
        {"product": _product(3, 999, promotion=False), "summation": _sum(3)},
        aligned=False,
        quick=False,
    ),
    *(
        Case(
            "block_scaled_mm",
            f"{m} rows" if m < 8192 else "many rows",
            lambda m=m: _inputs(m, True),
            {
                "product": _product(m, 72, waived=IN_LITTLE_TIME if 16 < m <= 128 else ()),
                **({"summation": _sum(m)} if m <= 128 else {}),
            },
            quick=m in (16, 8192),
        )
        for m in (16, 32, 64, 128, 8192)
    ),
    Case(
        "block_scaled_mm",
        "many rows, unaligned",
        lambda: _unaligned(8191, True),
        {"product": _product(8191, 999)},
        aligned=False,
        quick=False,
    ),
]
