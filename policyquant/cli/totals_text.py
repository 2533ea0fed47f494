"""The totals under a table: layers, parameters, bytes before and after, bits per weight, layers by method."""

from __future__ import annotations

from collections.abc import Sequence

from policyquant.cli.sizes_text import UNKNOWN_SIZES, bits_text, bytes_text, count_text, parameters_text, share_text
from policyquant.plan.plan import Plan
from policyquant.plan.rows import Row
from policyquant.plan.summary import Total, by_method, total


def totals(rows: Sequence[Row], of: str = "") -> list[tuple[str, str]]:
    """Titles and values; `of` says of what, if not of the whole model."""
    everything = total(rows)
    methods = by_method(rows)
    caches = _caches(rows)
    known = (everything.parameters, everything.bytes_before, everything.bytes_after) != (None, None, None)
    parameters = f", {parameters_text(everything.parameters)} parameters" if known else ""
    pairs = [
        (f"layers{of}", f"{everything.layers:,}{parameters}"),
        ("by method", ", ".join(_method_text(method, part, everything) for method, part in methods.items())),
        ("bytes", _bytes_text(everything)),
    ]
    if known:
        pairs.append(("bits per weight", _bits_text(everything)))
    if caches:
        pairs.append(("KV cache", f"quantized in {count_text(caches, 'layer')}"))
    return pairs


def outcome_text(plan: Plan) -> str:
    """`800 of 1,059 layers quantized, 87.0 GiB -> 44.5 GiB, …`: of a plan, in one line."""
    quantized = sum(row.count for row in plan.rows if row.scheme.weight is not None)
    kept = sum(row.count for row in plan.rows if row.stored is not None and row.scheme.method == "none")
    caches = _caches(plan.rows)
    told = [f"{quantized:,} of {count_text(len(plan), 'layer')} quantized"]
    told += [f"{kept:,} already stored quantized"] if kept else []
    told += [f"KV cache quantized in {count_text(caches, 'layer')}"] if caches else []
    return ", ".join([*told, change_text(plan.total)])


def _caches(rows: Sequence[Row]) -> int:
    return sum(row.count for row in rows if row.scheme.kv_cache is not None)


def change_text(everything: Total) -> str:
    """`86.9 GiB -> 44.8 GiB, 8.25 bits per weight`."""
    if everything.bytes_after is None:
        return "bytes unknown"
    text = f"{bytes_text(everything.bytes_before)} -> {bytes_text(everything.bytes_after)}"
    return f"{text}, {bits_text(everything.bits_after)} bits per weight"


def _method_text(method: str, part: Total, everything: Total) -> str:
    share = share_text(part.parameters, everything.parameters)
    return f"{method} {part.layers:,}" + (f" ({share} of parameters)" if share else "")


def _bytes_text(everything: Total) -> str:
    if everything.bytes_before is None and everything.bytes_after is None:
        return UNKNOWN_SIZES
    text = f"{bytes_text(everything.bytes_before)} -> {bytes_text(everything.bytes_after)}"
    share = share_text(everything.bytes_after, everything.bytes_before)
    return f"{text} ({share})" if share else text


def _bits_text(everything: Total) -> str:
    if everything.bits_before is None and everything.bits_after is None:
        return "unknown"
    return f"{bits_text(everything.bits_before)} -> {bits_text(everything.bits_after)}"
