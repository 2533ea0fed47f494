"""Encoding to blocks that share a scale of 8 bits, MX and NVFP4, and back."""

from __future__ import annotations

from functools import partial

import torch

from proof.case import BF16, FP8, FP32, Case, Kernel, meta

M, N, K = 8192, 4096, 7168

_PACKED = "codes that share a byte lie in one thread, and what it loads is as long as that layout gives"
_EIGHT = "a thread loads eight codes, whose results are the 16 bytes that it stores"
_DECODED = {"loads": _EIGHT, **dict.fromkeys(("issue", "fp32", "alu"), "weights are decoded once, offline")}
_DIVIDED = "each element is divided as IEEE says, and NVFP4 is the second tier: no bar is set for its speed"

CASES = [
    Case(
        "mxfp8_quant",
        "rows",
        lambda: (meta(M, K), "floor"),
        {
            "_encode_mx": Kernel(
                bytes=3 * M * K + M * K // 32,
                narrow_stores=1,
                waivers=dict.fromkeys(("issue@100", "alu@100"), "8 TB/s leave time for 14 instructions an element"),
            )
        },
    ),
    Case(
        "mxfp4_quant",
        "rows",
        lambda: (meta(M, K), "rceil"),
        {"_encode_mx": Kernel(bytes=5 * M * K // 2 + M * K // 32, narrow_stores=1, waivers={"loads": _PACKED})},
    ),
    Case(
        "mxfp4_quant",
        "odd pitch",
        lambda: (meta(M, K - 2, pitch=K + 1, offset=1), "floor"),
        {"_encode_mx": Kernel(bytes=5 * M * K // 2)},
        aligned=False,
    ),
    Case(
        "nvfp4_quant",
        "rows",
        lambda: (meta(M, K), meta(1, dtype=FP32)),
        {
            "_encode_nvfp4": Kernel(
                bytes=5 * M * K // 2 + M * K // 16,
                narrow_loads=1,
                narrow_stores=1,
                waivers=dict.fromkeys(("issue", "fp32", "alu", "xu"), _DIVIDED),
            )
        },
    ),
    *(
        Case(
            "mx_dequantize",
            name,
            partial(lambda q, scale: (q(), scale(), BF16), q, partial(meta, N, K // 32, dtype=torch.uint8)),
            {"_decode": Kernel(bytes=bytes_ * N * K + N * K // 32, narrow_loads=4, waivers=_DECODED)},
        )
        for name, q, bytes_ in (
            ("FP8", partial(meta, N, K, dtype=FP8), 3),
            ("FP4", partial(meta, N, K // 2, dtype=torch.uint8), 2.5),
        )
    ),
    Case(
        "nvfp4_dequantize",
        "rows",
        lambda: (meta(N, K // 2, dtype=torch.uint8), meta(N, K // 16, dtype=FP8), meta(1, dtype=FP32), BF16),
        {"_decode": Kernel(bytes=5 * N * K // 2 + N * K // 16, narrow_loads=4, waivers=_DECODED)},
    ),
]
