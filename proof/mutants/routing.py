"""Mutants of the choice of experts and of the order in which their products read tokens."""

from __future__ import annotations

from proof.mutants.mutant import Mutant


def _own(kind: str, old: str, new: str, equivalent: str = "") -> Mutant:
    return Mutant(kind, "kernels/triton/routing.py", old, new, "tests/kernels/test_routing.py", "triton", equivalent)


MUTANTS: list[Mutant] = [
    _own("ties to the higher id", "(BLOCK_E - 1 - columns).to(tl.int64)[None, :]", "columns.to(tl.int64)[None, :]"),
    _own("negative zero is smaller", "bits = tl.where(x == 0.0, 0.0, x).to(", "bits = x.to("),
    _own("negative values in the wrong order", "tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)", "bits"),
    _own("missing NaN rule", "return tl.where(x != x, 0x7FFFFFFF, key)", "return key"),
    _own(
        "the same expert twice",
        "keys = tl.where(chosen, taken, keys)",
        "keys = tl.where(chosen & SIGMOID, taken, keys)",
    ),
    _own("the bias weighs", "choice = scores + tl.load(", "choice = scores = scores + tl.load("),
    _own("missing renormalization", "if RENORMALIZE:", "if RENORMALIZE and SIGMOID:"),
    _own("division by zero", "tl.where(total < SMALLEST_SUM, SMALLEST_SUM, total)[:, None]", "total[:, None]"),
    _own(
        "overflow of the exponential",
        "powers = tl.exp(x - tl.max(x, axis=1)[:, None])",
        "powers = tl.exp(x)",
    ),
    _own("strides not honoured", "+ columns[None, :] * logits_column", "+ columns[None, :]"),
    _own("stale expert id", "here = (expert >= 0) & (expert < known)", "here = expert >= 0"),
    _own(
        "missing expert map",
        "here = (expert >= 0) & (expert < experts)\n    return",
        "here = here & (expert < experts)\n    return",
    ),
    _own(
        "blocks rounded down",
        "padded = tl.where(bins < experts, (counts + BLOCK - 1) // BLOCK * BLOCK, 0)",
        "padded = tl.where(bins < experts, counts // BLOCK * BLOCK, 0)",
    ),
    _own(
        "padding is a token",
        "tl.store(sorted_ids + begin + fill, total, mask=fill < end)",
        "tl.store(sorted_ids + begin + fill, 0, mask=fill < end)",
    ),
    _own(
        "what is left has an expert",
        "tl.store(expert_ids + start + lanes, -1,",
        "tl.store(expert_ids + start + lanes, 0,",
    ),
    _own(
        "only the first chunk is counted",
        "    for start in range(0, total, CHUNK):\n        pairs = start + lanes\n        found = expert_of(\n"
        "            ids, pairs, pairs < total, ids_row, ids_column, expert_map, map_stride, known, experts, CHOICES, "
        "MAPPED\n        )\n        counts",
        "    for start in range(0, tl.minimum(total, CHUNK), CHUNK):\n        pairs = start + lanes\n"
        "        found = expert_of(\n            ids, pairs, pairs < total, ids_row, ids_column, expert_map, map_stride, "
        "known, experts, CHOICES, MAPPED\n        )\n        counts",
    ),
    _own(
        "chunks write over each other",
        "            to += tl.sum(mine, axis=0)",
        "            to += 0",
    ),
]
