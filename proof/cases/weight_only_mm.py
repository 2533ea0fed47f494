"""Products of activations as they are with 8-bit weights."""

from __future__ import annotations

from collections.abc import Mapping

from proof.case import BF16, FP8, FP16, FP32, Case, Kernel, Launch, meta

N, K = 14336, 4096
EVERYWHERE = (80, 89, 90, 100)

_DECODED = "every code is decoded for one row of products: instructions, not bytes, are the limit of this configuration"
_ADDRESSED = "addresses and masks of the activations' loads cost as much as the products; the tiles have not been tuned"


def _steps(launch: Launch) -> tuple[float]:
    return (launch.arguments["K_OF_PART"] / launch.arguments["BLOCK_K"],)


def _product(m: int, waivers: Mapping[str, str] | None = None) -> dict[str, Kernel]:
    """Of m rows: K may be split, and its parts are added up."""
    return {
        "_multiply": Kernel(
            bytes=N * K + 2 * m * (N + K),
            flops=2 * m * N * K,
            loops=_steps,
            matrix="half",
            narrow_loads=4,
            waivers=waivers or {},
        ),
        "add_parts": Kernel(
            bytes=lambda launch: (4 * launch.arguments["PARTS"] + 2) * m * N,
            narrow_loads=4,
            optional=True,
        ),
    }


CASES = [
    Case(
        "fp8_weight_only_mm",
        "one row, a scale for each channel",
        lambda: (meta(1, K), meta(N, K, dtype=FP8), meta(N, 1, dtype=FP32), None, BF16),
        _product(1, {"issue": _DECODED}),
        architectures=EVERYWHERE,
    ),
    Case(
        "fp8_weight_only_mm",
        "many rows, blocks",
        lambda: (meta(4096, K), meta(N, K, dtype=FP8), meta(N // 128, K // 128, dtype=FP32), None, BF16),
        _product(4096),
        architectures=EVERYWHERE,
    ),
    Case(
        "fp8_weight_only_mm",
        "some rows, float16",
        lambda: (meta(64, K, dtype=FP16), meta(N, K, dtype=FP8), meta(1, dtype=FP32), None, FP16),
        _product(64, dict.fromkeys(("issue", "alu", "lsu", "fp32@80", "tensor@80"), _ADDRESSED)),
        architectures=EVERYWHERE,
    ),
    Case(
        "fp8_weight_only_mm",
        "odd pitch",
        lambda: (
            meta(64, K - 3, pitch=K - 1, offset=1),
            meta(N - 3, K - 3, dtype=FP8),
            meta(1, dtype=FP32),
            None,
            BF16,
        ),
        _product(64),
        aligned=False,
        architectures=EVERYWHERE,
    ),
]
