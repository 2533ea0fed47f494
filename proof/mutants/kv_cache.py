"""Mutants of writes to and reads of FP8 caches."""

from __future__ import annotations

from proof.mutants.mutant import Mutant


def _own(kind: str, old: str, new: str, equivalent: str = "") -> Mutant:
    return Mutant(kind, "kernels/triton/kv_cache.py", old, new, "tests/kernels/test_kv_cache.py", "triton", equivalent)


MUTANTS: list[Mutant] = [
    _own("swap the scales", "key, key_cache, k_scale, token", "key, key_cache, v_scale, token"),
    _own("write to negative slots", "valid = there & (slot >= 0) & (slot < slots)", "valid = there & (slot < slots)"),
    _own(
        "write to slots that are not there",
        "valid = there & (slot >= 0) & (slot < slots)",
        "valid = there & (slot >= 0)",
    ),
    _own(
        "multiply in place of dividing",
        "encode(value, own, LARGEST, cache.dtype.element_ty)",
        "encode(value, 1.0 / own, LARGEST, cache.dtype.element_ty)",
    ),
    _own(
        "one head's scale for all",
        "loaded = tl.load(scale + head * stride, mask=valid, other=1.0)[:, None]",
        "loaded = tl.load(scale + head * 0, mask=valid, other=1.0)[:, None]",
    ),
    _own(
        "ignore the cache's strides",
        "to = (block * stride_block + position * stride_position + head * stride_head)[:, None]",
        "to = (block * stride_block + position * stride_head + head * stride_position)[:, None]",
    ),
    _own(
        "read a skipped slot",
        "value = tl.where(valid[:, None], value, 0.0)",
        "value = value",
        "codes of a skipped slot are read as zeros, whose values are zeros under any scale but one that is no number",
    ),
]
