"""Encoding of weights to 4 bits."""

from __future__ import annotations

from proof.case import FP32, Case, Kernel, meta

N, K = 14336, 4096
EVERYWHERE = (80, 89, 90, 100)
_BUSY = dict.fromkeys(
    ("issue", "alu", "fp32", "xu", "lsu"),
    "every quotient is divided exactly and halves of bytes are joined; weights are encoded once",
)
_HALVES = dict.fromkeys(
    ("loads", "stores"),
    "what a thread loads as 16 bytes of bfloat16 are 4 bytes of codes, and pairs decide who holds what; encoded once",
)
_BYTES = 2 * N * K + N * K // 2

CASES = [
    Case(
        "int4_group_quant",
        "groups of 128",
        lambda: (meta(N, K), 128, FP32),
        {"_encode_groups": Kernel(bytes=_BYTES, narrow_stores=1, waivers=_BUSY | _HALVES)},
        architectures=EVERYWHERE,
    ),
    Case(
        "asymmetric_int4_group_quant",
        "groups of 32",
        lambda: (meta(N, K), 32, FP32),
        {"_encode_groups": Kernel(bytes=_BYTES, narrow_stores=2, waivers=_BUSY | _HALVES)},
        architectures=EVERYWHERE,
        quick=False,
    ),
    Case(
        "int4_group_quant",
        "odd pitch",
        lambda: (meta(N, K - 1, pitch=K + 1, offset=1), 64, FP32),
        {"_encode_groups": Kernel(bytes=_BYTES, waivers=_BUSY)},
        aligned=False,
        architectures=EVERYWHERE,
        quick=False,
    ),
]
