"""RMS norm, with the residual addition before it and the encoding to FP8 after it."""

from __future__ import annotations

from proof.case import FP8, FP32, Case, Kernel, meta

M, H = 8192, 4096

# Not within the bound, and known: three bytes an element leave 18 instructions on 9.0 and 11 on 10.0.
_ROUNDINGS = "the norm, its two roundings and the exact encoding take 15 to 18 instructions an element"
ENCODED = {
    **dict.fromkeys(("issue@90", "alu@90"), f"{_ROUNDINGS}; DRAM stays the limit"),
    **dict.fromkeys(("issue@100", "alu@100", "fp32@100", "lsu@100"), f"{_ROUNDINGS}; on 10.0 they are the limit"),
}

CASES = [
    Case(
        "rms_norm",
        "whole rows",
        lambda: (meta(M, H), meta(H), 1e-6),
        {"_norm_in_registers": Kernel(bytes=4 * M * H)},
    ),
    Case(
        "fused_add_rms_norm",
        "whole rows",
        lambda: (meta(M, H), meta(M, H), meta(H), 1e-6),
        {"_norm_in_registers": Kernel(bytes=8 * M * H)},
    ),
    Case(
        "rms_norm",
        "long rows",
        lambda: (meta(1024, 32768), meta(32768), 1e-6),
        {
            "_norm_in_steps": Kernel(
                bytes=4 * 1024 * 32768, loops=lambda launch: (32768 // launch.arguments["BLOCK_N"],) * 2
            )
        },
    ),
    Case(
        "rms_norm_static_fp8_quant",
        "whole rows",
        lambda: (meta(M, H), meta(H), 1e-6, meta(1, dtype=FP32), FP8),
        {"_norm_in_registers": Kernel(bytes=3 * M * H, narrow_loads=1, waivers=ENCODED)},
    ),
    Case(
        "rms_norm_per_token_fp8_quant",
        "whole rows",
        lambda: (meta(M, H), meta(H), 1e-6, None, FP8),
        {"_norm_in_registers": Kernel(bytes=3 * M * H, narrow_stores=1, waivers=ENCODED)},
    ),
    Case(
        "fused_add_rms_norm_per_token_fp8_quant",
        "whole rows",
        lambda: (meta(M, H), meta(M, H), meta(H), 1e-6, None, FP8),
        {"_norm_in_registers": Kernel(bytes=7 * M * H, narrow_stores=1, waivers=ENCODED)},
    ),
    Case(
        "fused_add_rms_norm_group_fp8_quant",
        "groups of 128, scales in columns",
        lambda: (meta(M, H), meta(M, H), meta(H), 1e-6, 128, True, False, FP8),
        {"_norm_in_registers": Kernel(bytes=7 * M * H + M * H // 32, narrow_stores=1, waivers=ENCODED)},
    ),
    Case(
        "rms_norm",
        "odd pitch",
        lambda: (meta(M, H - 1, pitch=H + 1, offset=1), meta(H - 1), 1e-6),
        {"_norm_in_registers": Kernel(bytes=4 * M * H)},
        aligned=False,
    ),
]
