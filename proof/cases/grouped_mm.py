"""Products of FP8 with the weights of several experts: every configuration of the table, which goes by rows of each."""

from __future__ import annotations

from typing import Any

from policyquant.kernels.triton.launch import Launch
from proof.case import BF16, FP8, FP32, INT32, Case, Kernel, meta

E, N, K = 8, 4096, 4096

_POINTERS = "operands go by pointers through shared memory, not by bulk copies; not tuned on a GPU yet"
_BALANCED = "with 256 rows of each expert the products take nearly as long as the weights"
_WAIVED = {
    **dict.fromkeys(("issue", "alu", "lsu", "fp32@100"), _POINTERS),
    "tensor": _BALANCED,
}


def _inputs(rows: int, blocks: bool, k: int = K) -> tuple[Any, ...]:
    tokens = E * rows
    scales = (
        (meta(tokens, -(-k // 128), dtype=FP32), meta(E, N // 128, -(-k // 128), dtype=FP32))
        if blocks
        else (meta(tokens, 1, dtype=FP32), meta(E, N, 1, dtype=FP32))
    )
    return meta(tokens, k, dtype=FP8), meta(E, N, k, dtype=FP8), *scales, meta(E, dtype=INT32), None, BF16


def _steps(launch: Launch) -> tuple[float]:
    return (-(-launch.arguments["K"] // launch.arguments["BLOCK_K"]),)


def _promoted(launch: Launch) -> bool:
    return bool(launch.arguments["PROMOTED"])


def _product(rows: int, **expected: Any) -> dict[str, Kernel]:
    tokens = E * rows
    return {
        "_grouped": Kernel(
            bytes=E * N * K + tokens * K + 2 * tokens * N,
            flops=2 * tokens * N * K,
            loops=_steps,
            matrix="fp8",
            promotion=_promoted,
            # Offsets of the experts, and scales.
            narrow_loads=72,
            **expected,
        )
    }


CASES = [
    *(
        Case(
            "grouped_scaled_mm",
            f"{rows} rows of each expert{', blocks' if blocks else ''}",
            lambda rows=rows, blocks=blocks: _inputs(rows, blocks),
            _product(rows, waivers=_WAIVED),
            quick=rows in (16, 256),
        )
        for rows in (16, 32, 64, 128, 256)
        for blocks in (False, True)
    ),
    *(
        Case(
            "grouped_scaled_mm",
            f"odd K{', blocks' if blocks else ''}",
            lambda blocks=blocks: _inputs(64, blocks, K - 3),
            _product(64),
            aligned=False,
            quick=not blocks,
        )
        for blocks in (False, True)
    ),
]
