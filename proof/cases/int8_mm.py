"""Products of int8 with int8."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from proof.case import BF16, FP32, INT32, Case, Kernel, Launch, meta

N, K = 14336, 4096
EVERYWHERE = (80, 89, 90, 100)
_STORED = {"lsu@100": "Triton 3.6 stores and reads the swapped tile through shared memory more often; not tuned"}


def _codes(rows: int, columns: int, **layout: int) -> Any:
    return meta(rows, columns, dtype=torch.int8, **layout)


def _steps(launch: Launch) -> tuple[float]:
    return (launch.arguments["steps"],)


def _product(m: int, narrow_loads: int, waivers: Mapping[str, str] | None = None) -> dict[str, Kernel]:
    """Of m rows: K may be split, and its parts are added up."""
    return {
        "_multiply": Kernel(
            bytes=N * K + m * (2 * N + K),
            flops=2 * m * N * K,
            loops=_steps,
            matrix="int8",
            narrow_loads=narrow_loads,
            waivers=waivers or {},
        ),
        "_add_parts": Kernel(
            bytes=lambda launch: (4 * launch.arguments["PARTS"] + 2) * m * N, narrow_loads=8, optional=True
        ),
    }


def _inputs(m: int, bias: bool = False, zero_point: bool = False) -> tuple[Any, ...]:
    return (
        _codes(m, K),
        _codes(N, K),
        meta(m, 1, dtype=FP32),
        meta(N, 1, dtype=FP32),
        meta(N) if bias else None,
        meta(m, 1, dtype=INT32) if zero_point else None,
        meta(N, dtype=INT32) if zero_point else None,
        BF16,
    )


CASES = [
    Case("scaled_int8_mm", "one row", lambda: _inputs(1), _product(1, 16, _STORED), architectures=EVERYWHERE),
    Case(
        "scaled_int8_mm",
        "some rows",
        lambda: _inputs(64, bias=True),
        _product(64, 40, _STORED),
        architectures=EVERYWHERE,
    ),
    Case(
        "scaled_int8_mm",
        "many rows, a zero point",
        lambda: _inputs(4096, zero_point=True),
        _product(4096, 136),
        architectures=EVERYWHERE,
    ),
    Case(
        "scaled_int8_mm",
        "odd pitch",
        lambda: (
            _codes(64, K - 3, pitch=K - 1, offset=1),
            _codes(N - 3, K - 3),
            meta(1, dtype=FP32),
            meta(1, dtype=FP32),
            None,
            None,
            None,
            BF16,
        ),
        _product(64, 16),
        aligned=False,
        architectures=EVERYWHERE,
        quick=False,
    ),
]
