"""A mixture of experts in five launches; its two products are one kernel."""

from __future__ import annotations

from typing import Any

from proof.case import BF16, FP8, FP32, INT32, Case, Kernel, meta

E, H, WIDTH, CHOICES = 8, 4096, 14336, 2

_TWICE = "the activation costs more instructions a byte than 4.8 TB/s give time for, and scales of tokens need it twice"
_TWO_KINDS = "some programs align and others encode, and each passes the loops of its own kind"


def _inputs(tokens: int, quantization: str, hidden: int = H) -> tuple[Any, ...]:
    if quantization == "group":
        blocks, of_width = -(-hidden // 128), WIDTH // 128
        scales = (meta(E, 2 * of_width, blocks, dtype=FP32), meta(E, blocks, of_width, dtype=FP32))
    else:
        scales = (meta(E, 2 * WIDTH, 1, dtype=FP32), meta(E, hidden, 1, dtype=FP32))
    routed = (meta(tokens, CHOICES, dtype=FP32), meta(tokens, CHOICES, dtype=INT32))
    weights = (meta(E, 2 * WIDTH, hidden, dtype=FP8), meta(E, hidden, WIDTH, dtype=FP8))
    return meta(tokens, hidden), *weights, *scales, *routed, "silu", quantization, None, None, None, None, BF16


def _layer(tokens: int) -> dict[str, Kernel]:
    pairs = tokens * CHOICES
    return {
        "_align_and_encode": Kernel(
            bytes=3 * tokens * H + 4 * pairs, narrow_loads=99, narrow_stores=99, waivers={"loops": _TWO_KINDS}
        ),
        "_activate_and_encode": Kernel(
            bytes=5 * pairs * WIDTH,
            loops=lambda launch: (
                (WIDTH // launch.arguments["WIDE"],) * (2 if launch.arguments["SCALES"] == "token" else 1)
            ),
            narrow_loads=4,
            narrow_stores=2,
            waivers=dict.fromkeys(
                (f"{pipe}@{sm}" for pipe in ("issue", "fp32", "alu", "xu") for sm in (90, 100)), _TWICE
            ),
        ),
        "_multiply": Kernel(
            bytes=lambda launch: min(E, pairs) * launch.arguments["N"] * launch.arguments["K"],
            flops=lambda launch: 2 * pairs * launch.arguments["N"] * launch.arguments["K"],
            loops=lambda launch: (-(-launch.arguments["K"] // launch.arguments["BLOCK_K"]),),
            matrix="fp8",
            promotion=lambda launch: bool(launch.arguments["PROMOTED"]),
            narrow_loads=99,
        ),
        "_sum": Kernel(bytes=2 * pairs * H + 2 * tokens * H, narrow_loads=24),
    }


CASES = [
    Case("fused_moe", "8 tokens", lambda: _inputs(8, "token"), _layer(8)),
    Case("fused_moe", "4096 tokens", lambda: _inputs(4096, "token"), _layer(4096)),
    Case("fused_moe", "4096 tokens, groups", lambda: _inputs(4096, "group"), _layer(4096)),
    *(
        Case(
            "fused_moe",
            f"{tokens} tokens, odd hidden size{', groups' if quantization == 'group' else ''}",
            lambda tokens=tokens, quantization=quantization: _inputs(tokens, quantization, H - 3),
            _layer(tokens),
            aligned=False,
            quick=False,
        )
        for tokens in (8, 4096)
        for quantization in ("token", "group")
    ),
]
