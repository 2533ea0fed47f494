"""Encoding of activations to int8."""

from __future__ import annotations

from proof.case import BF16, FP32, INT32, Case, Kernel, Launch, meta

M, K = 8192, 4096
EVERYWHERE = (80, 89, 90, 100)
_TWICE = "each row is read and rounded by instructions that FP8's cast spares; the tiles have not been tuned"
_BUSY = dict.fromkeys(("issue", "alu", "fp32", "lsu"), _TWICE)


def _steps(launch: Launch) -> tuple[float, float]:
    steps = -(-launch.arguments["K"] // launch.arguments["BLOCK_N"])
    return (steps, steps)


CASES = [
    Case(
        "per_token_int8_quant",
        "whole rows",
        lambda: (meta(M, K),),
        {"_encode_rows": Kernel(bytes=3 * M * K, loops=_steps, narrow_stores=1, waivers=_BUSY)},
        architectures=EVERYWHERE,
    ),
    Case(
        "per_token_int8_quant",
        "odd pitch",
        lambda: (meta(M, K - 1, pitch=K + 1, offset=1),),
        {"_encode_rows": Kernel(bytes=3 * M * K, loops=_steps, waivers=_BUSY)},
        aligned=False,
        architectures=EVERYWHERE,
        quick=False,
    ),
    Case(
        "asymmetric_per_token_int8_quant",
        "rows in steps",
        lambda: (meta(1024, 32768),),
        {"_encode_rows": Kernel(bytes=3 * 1024 * 32768, loops=_steps, narrow_stores=2, waivers=_BUSY)},
        architectures=EVERYWHERE,
    ),
    Case(
        "static_scaled_int8_quant",
        "one scale",
        lambda: (meta(M, K), meta(1, dtype=FP32), None),
        {"_encode_by_scale": Kernel(bytes=3 * M * K, narrow_loads=1, waivers=_BUSY)},
        architectures=EVERYWHERE,
    ),
    Case(
        "static_scaled_int8_quant",
        "a zero point",
        lambda: (meta(M, K, dtype=BF16), meta(1, dtype=FP32), meta(1, dtype=INT32)),
        {"_encode_by_scale": Kernel(bytes=3 * M * K, narrow_loads=2, waivers=_BUSY)},
        architectures=EVERYWHERE,
        quick=False,
    ),
]
