"""Mutants of gated activations."""

from __future__ import annotations

from proof.mutants.mutant import Mutant


def _own(kind: str, old: str, new: str) -> Mutant:
    return Mutant(
        kind,
        "kernels/triton/activation.py",
        old,
        new,
        "tests/kernels/test_fused_outputs.py",
        "near_the_reference or ((silu or gelu or strides or activation) and triton)",
    )


MUTANTS: list[Mutant] = [
    _own(
        "swap gate and up",
        "gate, up = (as_rows(half) for half in x.chunk(2, dim=-1))",
        "up, gate = (as_rows(half) for half in x.chunk(2, dim=-1))",
    ),
    _own(
        "drop the least static scale",
        "known = tl.maximum(tl.load(scale), SMALLEST_SCALE, propagate_nan=tl.PropagateNan.ALL)",
        "known = tl.load(scale) * 2.0",
    ),
    _own(
        "32-bit scale of another row",
        "tl.store(out_scale + row, scale, mask=row < M)",
        "tl.store(out_scale + row, scale, mask=row < M - 1)",
    ),
    _own(
        "skip the tail of rows",
        "rows = (program // blocks * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]\n    columns = (program % blocks * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]\n    mask = (rows < M) & (columns < N)",
        "rows = (program // blocks * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]\n    columns = (program % blocks * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]\n    mask = (rows < M) & (columns < N - 1)",
    ),
    _own(
        "stale group", "row = program // blocks * BLOCK_M + pair // BLOCK_GROUPS", "row = program // blocks * BLOCK_M"
    ),
    _own(
        "scales in rows whatever the layout",
        "row.to(tl.int64) * stride_scale_row + group.to(tl.int64) * stride_scale_group",
        "row.to(tl.int64) * groups + group.to(tl.int64)",
    ),
    _own(
        "quantize with the scale before rounding",
        "scale = next_power_of_two(scale)\n        codes = encode_by_power_of_two(y, scale[:, None], LARGEST, out.dtype.element_ty)",
        "codes = encode(y, scale[:, None], LARGEST, out.dtype.element_ty)\n        scale = next_power_of_two(scale)",
    ),
    _own("forget the upper bound", '"BOUNDED": scale_ub is not None', '"BOUNDED": False'),
]
