"""Products of activations as they are with 4-bit weights."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from proof.case import BF16, FP16, FP32, Case, Kernel, Launch, meta

N, K = 14336, 4096
EVERYWHERE = (80, 89, 90, 100)
_DECODED = dict.fromkeys(
    ("issue", "alu", "fp32", "lsu", "xu", "tensor@100"),
    "every code is decoded for few rows of products: instructions, not bytes, are the limit; the tiles are not tuned",
)

_COPIED = {"loads": "Triton's pipeline copies these bytes to shared memory in pieces of 8 on 8.0 and 8.9, of 4 on 9.0"}


def _steps(launch: Launch) -> tuple[float]:
    return (2 * launch.arguments["BYTES_OF_PART"] / launch.arguments["BLOCK_K"],)


def _product(m: int, narrow_loads: int, waivers: Mapping[str, str] | None = None) -> dict[str, Kernel]:
    """Of m rows: K may be split, and its parts are added up."""
    return {
        "_multiply": Kernel(
            bytes=N * K // 2 + 2 * m * (N + K),
            flops=2 * m * N * K,
            loops=_steps,
            matrix="half",
            narrow_loads=narrow_loads,
            waivers=waivers or {},
        ),
        "add_parts": Kernel(
            bytes=lambda launch: (4 * launch.arguments["PARTS"] + 2) * m * N, narrow_loads=4, optional=True
        ),
    }


CASES = [
    Case(
        "int4_weight_only_mm",
        "one row",
        lambda: (meta(1, K), meta(N, K // 2, dtype=torch.uint8), meta(N, K // 128, dtype=FP32), None, 128, None, BF16),
        _product(1, 16, _DECODED | _COPIED),
        architectures=EVERYWHERE,
    ),
    Case(
        "int4_weight_only_mm",
        "many rows, zero points, groups of 64",
        lambda: (
            meta(4096, K),
            meta(N, K // 2, dtype=torch.uint8),
            meta(N, K // 64),
            meta(N, K // 64, dtype=torch.uint8),
            64,
            meta(N),
            BF16,
        ),
        _product(4096, 64),
        architectures=EVERYWHERE,
    ),
    Case(
        "int4_weight_only_mm",
        "some rows, float16, groups of 32",
        lambda: (
            meta(64, K, dtype=FP16),
            meta(N, K // 2, dtype=torch.uint8),
            meta(N, K // 32, dtype=FP16),
            None,
            32,
            None,
            FP16,
        ),
        _product(64, 64, _DECODED),
        architectures=EVERYWHERE,
        quick=False,
    ),
    Case(
        "int4_weight_only_mm",
        "odd pitch",
        lambda: (
            meta(64, K - 3, pitch=K - 1, offset=1),
            meta(N - 3, K // 2 - 1, dtype=torch.uint8),
            meta(N - 3, K // 128),
            None,
            128,
            None,
            BF16,
        ),
        _product(64, 16),
        aligned=False,
        architectures=EVERYWHERE,
        quick=False,
    ),
]
