"""Gated activations, alone and with the encoding to FP8 that follows."""

from __future__ import annotations

from proof.case import FP8, FP32, Case, Kernel, meta

M, N = 8192, 4096

# What is not within the bound, and is known: five bytes an element leave about 30 instructions on 9.0 and 18 on 10.0.
_EXPONENTIAL = "the exponential, two divisions and the exact encoding take about 24 instructions an element"
ACTIVATED = {
    **dict.fromkeys(("issue@90", "alu@90"), f"{_EXPONENTIAL}; DRAM stays the limit"),
    **dict.fromkeys(
        ("issue@100", "alu@100", "xu@100", "fp32@100"), f"{_EXPONENTIAL}; on 10.0 instructions are the limit"
    ),
}
_TWICE = "rows that no program holds are activated twice, which costs less than writing them out between"
ACTIVATED_TWICE = dict.fromkeys(("issue", "alu", "xu", "fp32"), _TWICE)

CASES = [
    Case("silu_and_mul", "tiles", lambda: (meta(M, 2 * N),), {"_activate": Kernel(bytes=6 * M * N)}),
    Case(
        "gated_activation_static_fp8_quant",
        "tiles",
        lambda: (meta(M, 2 * N), meta(1, dtype=FP32), "silu", FP8),
        {"_activate": Kernel(bytes=5 * M * N, narrow_loads=1, waivers=ACTIVATED)},
    ),
    Case(
        "gated_activation_per_token_fp8_quant",
        "whole rows",
        lambda: (meta(M, 2 * N), "silu", None, FP8),
        {"_activate_per_token": Kernel(bytes=5 * M * N, narrow_stores=1, waivers=ACTIVATED)},
    ),
    Case(
        "gated_activation_per_token_fp8_quant",
        "long rows",
        lambda: (meta(1024, 2 * 32768), "silu", None, FP8),
        {
            "_activate_per_token_in_steps": Kernel(
                bytes=5 * 1024 * 32768,
                loops=lambda launch: (32768 // launch.arguments["BLOCK_N"],) * 2,
                narrow_stores=1,
                waivers=ACTIVATED_TWICE,
            )
        },
    ),
    Case(
        "gated_activation_group_fp8_quant",
        "groups of 128, scales in columns",
        lambda: (meta(M, 2 * N), "silu", 128, True, False, FP8),
        {"_activate_per_group": Kernel(bytes=5 * M * N + M * N // 32, narrow_stores=1, waivers=ACTIVATED)},
    ),
    Case(
        "gated_activation_static_fp8_quant",
        "odd width",
        lambda: (meta(M, 2 * N - 2), meta(1, dtype=FP32), "silu", FP8),
        {"_activate": Kernel(bytes=5 * M * N)},
        aligned=False,
    ),
]
