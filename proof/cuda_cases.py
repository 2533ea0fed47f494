"""What is expected of the CUDA library's kernels: how many narrow accesses, and what limits representative launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

M, K = 8192, 4096
_PACK: Final = 16  # elements that a thread has at a time
_THREADS: Final = 256  # of a block whose work is packs
_HELD: Final = 4  # packs of a row that a thread holds
_MOST_THREADS: Final = 512  # of a block that has a row


@dataclass(frozen=True, slots=True)
class Launch:
    """What a launch asks of the GPU.

    Args:
        trips: how often each loop is passed, in the order of their first lines; an outer loop stands before those
            inside it, whose counts are those of one pass.
    """

    blocks: int
    threads: int
    trips: Sequence[float]


@dataclass(frozen=True, slots=True)
class Case:
    """One launch of one kernel.

    Args:
        operator: the operator that launches it.
        source: the file that has it, without the suffix.
        kernel: its name with its template's arguments.
        launch: multiprocessors of a GPU → the launch.
        bytes: through DRAM, of all blocks.
        waivers: what is known to fail → why that is right, as in `proof.case.Kernel`.
    """

    operator: str
    source: str
    kernel: str
    launch: Callable[[int], Launch]
    bytes: float
    waivers: Mapping[str, str] = field(default_factory=dict)


def _blocks(work: int, threads: int, multiprocessors: int) -> int:
    """As `Gpu::blocks` in tensors.cuh."""
    return min(work, multiprocessors * max(1, 2048 // threads))


def _of_packs(multiprocessors: int) -> Launch:
    """Packs of the whole tensor, each thread's one after the other."""
    packs = M * K // _PACK
    blocks = _blocks(packs // _THREADS, _THREADS, multiprocessors)
    return Launch(blocks, _THREADS, (packs / (blocks * _THREADS),))


def _of_rows(loops: int) -> Callable[[int], Launch]:
    """A row is a block's, which holds all of it: the loops inside that are for what it cannot hold are not passed."""

    def launch(multiprocessors: int) -> Launch:
        threads = min(max(-(-K // _PACK // _HELD // 32) * 32, 32), _MOST_THREADS)
        blocks = _blocks(M, threads, multiprocessors)
        return Launch(blocks, threads, (M / blocks, *(0,) * (loops - 1)))

    return launch


NARROW: Final[Mapping[str, tuple[int, int]]] = {
    "encode_with_scale": (1, 0),
    "encode_rows": (0, 1),
    "encode_groups": (0, 1),
    "encode_norms": (1, 8),
    "largest_of_blocks": (0, 1),
    "store_elements": (0, 0),
    "write_packs": (3, 0),
    "read_packs": (2, 0),
}
"""Kernel of packs → loads below 128 bits and stores below 64 that an aligned instance may have: scales, and slots.
A row of a norm stores its groups' scales, once for each pack that a thread holds and once in the loop for others."""

IN_SOFTWARE: Final = "compute capability 8.0 has no instruction that encodes FP8: codes take some 20 operations each"
_TABLE: Final = {f"{pipe}@80": IN_SOFTWARE for pipe in ("issue", "alu", "fp32", "lsu")}
_GROUPS: Final = {
    **_TABLE,
    **dict.fromkeys(
        ("issue@100", "alu@100", "xu@100"),
        "each thread finds the scale of its group, its inverse and its place for 16 elements; DRAM is the limit",
    ),
}
_ROWS_OF_ACTIVATIONS: Final = {
    **_TABLE,
    "issue@100": "two thirds are the exponential and the division of each element; DRAM stays the limit",
}
_NORMS: Final = {
    **_TABLE,
    **dict.fromkeys(
        ("issue@90", "issue@100", "alu@100", "lsu@100"),
        "both ways of a branch count, so also the addition of a residual, which is not made here; at 3 bytes an element"
        " the norm's roundings and the sums over a block take up to 17 instructions an element",
    ),
}

_EXACT: Final = (
    "float32 with exact exponentials or error functions: a thread stores one of its values and loads it again"
)
_NOT_NEIGHBOURS: Final = "rows that are not aligned: a thread stores one of the addresses of its elements"
_CODES: Final = ("e4m3fn", "e5m2")
SPILLS: Final[Mapping[str, str]] = {
    "store_elements<Gated<gelu_tanh, float, true>>": _EXACT,
    "store_elements<Gated<silu, float, true>>": _EXACT,
    **{f"encode_rows<{code}, Gated<gelu, float, true>>": _EXACT for code in _CODES},
    **{f"encode_rows<{code}, Stored<float16, false>>": _NOT_NEIGHBOURS for code in _CODES},
    **{
        f"encode_norms<{dtype}, float, false, of_rows, {code}>": _NOT_NEIGHBOURS
        for dtype in ("bfloat16", "float16")
        for code in _CODES
    },
    **{
        f"encode_norms<float, float, true, of_groups, {code}>": "on 10.0 a thread stores two values and loads them"
        for code in _CODES
    },
}
"""Instance that goes by local memory on some architecture → why."""


CASES: Final = [
    Case(
        "static_scaled_fp8_quant",
        "quantize",
        "encode_with_scale<e4m3fn, Stored<bfloat16, true>>",
        _of_packs,
        3 * M * K,
        _TABLE,
    ),
    Case("dynamic_scaled_fp8_quant", "quantize", "largest_of_blocks<Stored<bfloat16, true>>", _of_packs, 2 * M * K),
    Case(
        "per_token_scaled_fp8_quant",
        "quantize",
        "encode_rows<e4m3fn, Stored<bfloat16, true>>",
        _of_rows(3),
        3 * M * K,
        _TABLE,
    ),
    Case(
        "group_fp8_quant",
        "group_quantize",
        "encode_groups<e4m3fn, Stored<bfloat16, true>>",
        _of_packs,
        3 * M * K + M * K // 32,
        _GROUPS,
    ),
    Case("silu_and_mul", "activation", "store_elements<Gated<silu, bfloat16, true>>", _of_packs, 6 * M * K),
    Case(
        "gated_activation_static_fp8_quant",
        "activation",
        "encode_with_scale<e4m3fn, Gated<silu, bfloat16, true>>",
        _of_packs,
        5 * M * K,
        _TABLE,
    ),
    Case(
        "gated_activation_per_token_fp8_quant",
        "activation",
        "encode_rows<e4m3fn, Gated<silu, bfloat16, true>>",
        _of_rows(3),
        5 * M * K,
        _ROWS_OF_ACTIVATIONS,
    ),
    Case(
        "gated_activation_group_fp8_quant",
        "activation",
        "encode_groups<e4m3fn, Gated<silu, bfloat16, true>>",
        _of_packs,
        5 * M * K + M * K // 32,
        _GROUPS,
    ),
    Case("rms_norm", "norm", "encode_norms<bfloat16, bfloat16, true, none, e4m3fn>", _of_rows(3), 4 * M * K),
    Case(
        "rms_norm_static_fp8_quant",
        "norm",
        "encode_norms<bfloat16, bfloat16, true, given, e4m3fn>",
        _of_rows(3),
        3 * M * K,
        _NORMS,
    ),
    Case(
        "rms_norm_per_token_fp8_quant",
        "norm",
        "encode_norms<bfloat16, bfloat16, true, of_rows, e4m3fn>",
        _of_rows(4),
        3 * M * K,
        _NORMS,
    ),
    Case(
        "fused_add_rms_norm_per_token_fp8_quant",
        "norm",
        "encode_norms<bfloat16, bfloat16, true, of_rows, e4m3fn>",
        _of_rows(4),
        7 * M * K,
        _TABLE,
    ),
    Case(
        "fused_add_rms_norm_group_fp8_quant",
        "norm",
        "encode_norms<bfloat16, bfloat16, true, of_groups, e4m3fn>",
        _of_rows(3),
        7 * M * K + M * K // 32,
        _TABLE,
    ),
    # 32768 tokens of 8 heads of 128 are as many numbers.
    Case(
        "reshape_and_cache_fp8",
        "kv_cache",
        "write_packs<e4m3fn, bfloat16, true>",
        _of_packs,
        6 * M * K + 8 * 32768,
        _TABLE,
    ),
    Case(
        "gather_cache_fp8", "kv_cache", "read_packs<e4m3fn, bfloat16, true>", _of_packs, 3 * M * K + 8 * 32768, _TABLE
    ),
]
