"""Encoding with a scale for each group or block, and back."""

from __future__ import annotations

from functools import partial

from proof.case import BF16, FP8, FP32, Case, Kernel, meta

M, N, K = 8192, 4096, 7168
GROUPS = 3 * M * K + M * K // 32
TWO_DIVISIONS = {
    "issue@90": "each of the 8 threads of a group divides twice, for its scale and its inverse; DRAM stays the limit",
    "alu@90": "as issue@90",
    "issue@100": "the same; 8 TB/s leave time for 14 instructions an element, so these, not DRAM, may be the limit",
    "alu@100": "as issue@100",
    "fp32@100": "as issue@100",
}

CASES = [
    *(
        Case(
            "group_fp8_quant",
            f"groups of {size}, {'columns' if column_major else 'rows'}{', powers of two' if power_of_two else ''}",
            partial(lambda *how: (meta(M, K), *how, FP8), size, column_major, power_of_two),
            {"_encode_groups": Kernel(bytes=3 * M * K + 4 * M * K // size, narrow_stores=1, waivers=TWO_DIVISIONS)},
            quick=quick,
        )
        for size, column_major, power_of_two, quick in (
            (128, False, False, True),
            (128, True, True, True),
            (64, True, False, False),
            (32, False, True, False),
        )
    ),
    Case(
        "group_fp8_quant",
        "odd pitch",
        lambda: (meta(M, K - 1, pitch=K + 1, offset=1), 128, True, False, FP8),
        {"_encode_groups": Kernel(bytes=GROUPS)},
        aligned=False,
    ),
    Case(
        "block_fp8_quant",
        "128 × 128",
        lambda: (meta(N, K), [128, 128], False, FP8),
        {
            "_encode_blocks": Kernel(
                bytes=3 * N * K,
                narrow_stores=1,
                waivers=dict.fromkeys(("issue@90", "issue@100", "alu@100"), "weights are encoded once, offline"),
            )
        },
    ),
    Case(
        "dequantize_blocks",
        "128 × 128",
        lambda: (meta(N, K, dtype=FP8), meta(N // 128, K // 128, dtype=FP32), [128, 128], BF16),
        {
            # Triton 3.6 loads a block's scale for each of the two rows that a thread has, twice.
            "_decode_blocks": Kernel(
                bytes=3 * N * K,
                narrow_loads=4,
                waivers=dict.fromkeys(("issue@100", "alu@100"), "weights are decoded once, offline"),
            )
        },
    ),
]
