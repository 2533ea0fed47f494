"""Encoding with one scale for a tensor or a row, and back."""

from __future__ import annotations

from proof.case import BF16, FP8, FP32, Case, Kernel, meta

M, K = 8192, 4096
LONG = 32768
EIGHT_TERABYTES = dict.fromkeys(
    ("issue@100", "alu@100", "fp32@100"),
    "8 TB/s leave time for 14 instructions an element of 3 bytes, of which a row with its own scale takes most",
)
ROWS = {
    **EIGHT_TERABYTES,
    "issue@90": "short rows, and rows in steps by Triton 3.6, issue up to 80 % of the time; DRAM stays the limit",
}
INT8 = {
    "issue": "rounding to int8 takes instructions that FP8's cast spares; weights are encoded once, offline",
    "alu": "as issue",
    "fp32": "as issue",
}


def _tiles_a_program(launch: object) -> tuple[float, ...]:
    """Of 4096 elements, on as many programs as there are."""
    tiles = M * K // 4096
    return (tiles / launch.grid[0],)  # type: ignore[attr-defined]


CASES = [
    Case(
        "static_scaled_fp8_quant",
        "one row of everything",
        lambda: (meta(M, K), meta(1, dtype=FP32), FP8),
        {"_encode_by_scale": Kernel(bytes=3 * M * K, narrow_loads=1, waivers=EIGHT_TERABYTES)},
    ),
    Case(
        "static_scaled_fp8_quant",
        "float32",
        lambda: (meta(M, K, dtype=FP32), meta(1, dtype=FP32), FP8),
        {"_encode_by_scale": Kernel(bytes=5 * M * K, narrow_loads=1)},
        quick=False,
    ),
    Case(
        "static_scaled_fp8_quant",
        "odd pitch",
        lambda: (meta(M, K - 1, pitch=K + 1, offset=1), meta(1, dtype=FP32), FP8),
        {"_encode_by_scale": Kernel(bytes=3 * M * K)},
        aligned=False,
    ),
    Case(
        "dynamic_scaled_fp8_quant",
        "one row of everything",
        lambda: (meta(M, K), None, FP8),
        {
            "_largest_by_program": Kernel(bytes=2 * M * K, loops=_tiles_a_program, narrow_stores=1),
            # The largest magnitudes of programs are loaded before the loop.
            "_encode_by_largest": Kernel(
                bytes=3 * M * K, loops=_tiles_a_program, narrow_loads=8, narrow_stores=1, waivers=EIGHT_TERABYTES
            ),
        },
    ),
    Case(
        "per_token_scaled_fp8_quant",
        "rows in registers",
        lambda: (meta(M, K), None, FP8),
        {"_encode_rows": Kernel(bytes=3 * M * K, narrow_stores=1, waivers=EIGHT_TERABYTES)},
    ),
    Case(
        "per_token_scaled_fp8_quant",
        "short rows",
        lambda: (meta(M, 512), None, FP8),
        {"_encode_rows": Kernel(bytes=3 * M * 512, narrow_stores=1, waivers=ROWS)},
        quick=False,
    ),
    Case(
        "per_token_scaled_fp8_quant",
        "long rows",
        lambda: (meta(1024, LONG), None, FP8),
        {
            "_encode_row_in_steps": Kernel(
                bytes=3 * 1024 * LONG,
                loops=lambda launch: (LONG // launch.arguments["BLOCK_N"],) * 2,
                narrow_stores=1,
                waivers=ROWS,
            )
        },
    ),
    Case(
        "per_channel_int8_quant",
        "rows in registers",
        lambda: (meta(M, K),),
        {"_encode_rows": Kernel(bytes=3 * M * K, narrow_stores=1, waivers=INT8)},
    ),
    Case(
        "dequantize",
        "a scale a row",
        lambda: (meta(M, K, dtype=FP8), meta(M, 1, dtype=FP32), BF16),
        {"_decode": Kernel(bytes=3 * M * K, narrow_loads=1)},
    ),
]
