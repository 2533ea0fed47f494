"""Products with weights in MX and NVFP4: of activations as they are, and of MXFP8."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from proof.case import BF16, FP8, FP32, Case, Kernel, Launch, meta

N, K = 14336, 4096
EVERYWHERE = (80, 89, 90, 100)
DECODED = (80, 89, 90)
_SECOND_TIER = dict.fromkeys(
    ("issue", "alu", "fp32", "lsu", "xu"),
    "every code is decoded for few rows of products; no bar is set for the speed of these formats, nothing is tuned",
)
_COPIED = "Triton's pipeline copies rows of half as many bytes, and scales of a byte, in pieces of 4 and 8"


def _fp4(rows: int, block: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    return meta(rows, K // 2, dtype=torch.uint8), meta(rows, K // block, dtype=torch.uint8 if block == 32 else FP8)


def _fp8(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return meta(rows, K, dtype=FP8), meta(rows, K // 32, dtype=torch.uint8)


def _scaled(m: int, weight: tuple[torch.Tensor, torch.Tensor]) -> tuple[Any, ...]:
    (a, scale_a), (b, scale_b) = _fp8(m), weight
    return a, b, scale_a, scale_b, None, BF16


def _steps(launch: Launch) -> tuple[float]:
    return (launch.arguments["K_OF_PART"] / launch.arguments["BLOCK_K"],)


def _product(m: int, of_weight: float, of_x: int = 2, waivers: Mapping[str, str] | None = None) -> dict[str, Kernel]:
    """Of m rows, with so many bytes a weight and an activation: K may be split, and its parts are added up."""
    return {
        "_multiply": Kernel(
            bytes=of_weight * N * K + of_x * m * K + 2 * m * N,
            flops=2 * m * N * K,
            loops=_steps,
            matrix="half",
            narrow_loads=8,
            waivers={"loads": _COPIED, **(waivers or {})},
        ),
        "add_parts": Kernel(
            bytes=lambda launch: (4 * launch.arguments["PARTS"] + 2) * m * N, narrow_loads=4, optional=True
        ),
    }


def _native(m: int, of_weight: float) -> dict[str, Kernel]:
    return {
        "_multiply_scaled": Kernel(
            bytes=of_weight * N * K + m * K + 2 * m * N,
            flops=2 * m * N * K,
            loops=lambda launch: (launch.arguments["K"] / launch.arguments["BLOCK_K"],),
            matrix="fp8",
            narrow_loads=8,
            waivers={"loads": _COPIED},
        )
    }


CASES = [
    Case(
        "mx_weight_only_mm",
        "one row, FP4",
        lambda: (meta(1, K), *_fp4(N), None, BF16),
        _product(1, 0.5 + 1 / 32, waivers=_SECOND_TIER),
        architectures=EVERYWHERE,
    ),
    Case(
        "mx_weight_only_mm",
        "many rows, FP8",
        lambda: (meta(4096, K), *_fp8(N), meta(N), BF16),
        _product(4096, 1 + 1 / 32),
        architectures=EVERYWHERE,
    ),
    Case(
        "mx_weight_only_mm",
        "odd pitch",
        lambda: (
            meta(64, K - 2, pitch=K - 1, offset=1),
            meta(N - 3, K // 2 - 1, dtype=torch.uint8),
            meta(N - 3, K // 32, dtype=torch.uint8),
            None,
            BF16,
        ),
        _product(64, 0.5),
        aligned=False,
        architectures=EVERYWHERE,
    ),
    Case(
        "nvfp4_weight_only_mm",
        "one row",
        lambda: (meta(1, K), *_fp4(N, 16), meta(1, dtype=FP32), None, BF16),
        _product(1, 0.5 + 1 / 16, waivers=_SECOND_TIER),
        architectures=EVERYWHERE,
    ),
    Case(
        "nvfp4_weight_only_mm",
        "many rows",
        lambda: (meta(4096, K), *_fp4(N, 16), meta(1, dtype=FP32), meta(N), BF16),
        _product(4096, 0.5 + 1 / 16),
        architectures=EVERYWHERE,
    ),
    Case(
        "mx_scaled_mm",
        "many rows, decoded",
        lambda: _scaled(4096, _fp4(N)),
        _product(4096, 0.5 + 1 / 32, of_x=1),
        architectures=DECODED,
    ),
    Case(
        "mx_scaled_mm",
        "FP8 with FP8",
        lambda: _scaled(4096, _fp8(N)),
        _native(4096, 1 + 1 / 32),
        architectures=(100,),
    ),
    Case(
        "mx_scaled_mm",
        "FP8 with FP4",
        lambda: _scaled(4096, _fp4(N)),
        _native(4096, 0.5 + 1 / 32),
        architectures=(100,),
    ),
]
