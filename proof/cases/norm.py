"""RMS norm, with the residual addition before it and the encoding to FP8 after it."""

from __future__ import annotations

from proof.case import Case, Kernel, meta

M, H = 8192, 4096

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
        "rms_norm",
        "odd pitch",
        lambda: (meta(M, H - 1, pitch=H + 1, offset=1), meta(H - 1), 1e-6),
        {"_norm_in_registers": Kernel(bytes=4 * M * H)},
        aligned=False,
    ),
]
