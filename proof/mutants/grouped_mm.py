"""Mutants of grouped products."""

from __future__ import annotations

from proof.mutants.mutant import Mutant


def _own(kind: str, old: str, new: str, equivalent: str = "") -> Mutant:
    return Mutant(
        kind, "kernels/triton/grouped_mm.py", old, new, "tests/kernels/test_grouped_mm.py", "triton", equivalent
    )


MUTANTS: list[Mutant] = [
    _own(
        "rows behind the last are left",
        "tl.store(to, tl.zeros((BLOCK_M, BLOCK_N), dtype=out.dtype.element_ty), mask=stored)",
        "tl.store(to, tl.zeros((BLOCK_M, BLOCK_N), dtype=out.dtype.element_ty), mask=stored & (row < 0)[:, None])",
    ),
    _own(
        "stale expert",
        "expert = tl.sum((behind <= tile_m).to(tl.int32), axis=0)",
        "expert = tl.sum((behind < tile_m).to(tl.int32), axis=0)",
    ),
    _own("missing bias", "sums += tl.load(at, mask=channel < N, other=0.0).to(tl.float32)[None, :]", "sums += 0.0"),
    _own(
        "write past the expert's rows",
        "stored = (row < end)[:, None] & (channel < N)[None, :]",
        "stored = (row < M)[:, None] & (channel < N)[None, :]",
        "programs run in turn in the interpreter, and the next tile writes over it; on a GPU it is a race",
    ),
]
