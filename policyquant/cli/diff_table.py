"""The table of `diff`: what happens to which layers in one plan and in the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from policyquant.cli.layer_table import RulePlaces, as_stored_text, quantization_text, rule_texts
from policyquant.cli.sizes_text import bytes_text, shape_text
from policyquant.cli.tables import Column, Table
from policyquant.plan.diff import Difference, LayerState, PlanDiff
from policyquant.policy.methods import METHODS

_COLUMNS: Final = (
    Column("name", fold=True, code=True),
    Column("layers", right=True),
    Column("kind", style="dim"),
    Column("before", fold=True, style="red"),
    Column("after", fold=True, style="green"),
    Column("bytes before", right=True),
    Column("bytes after", right=True),
    Column("rule before", fold=True, code=True, style="dim"),
    Column("rule after", fold=True, code=True, style="dim"),
)

_NOT_THERE: Final = "not there"


def diff_table(diff: PlanDiff) -> Table:
    """One line for each span of layers that differ alike: changed ones first, then those of one plan only."""
    differences = (*diff.changed, *diff.removed, *diff.added)
    states = [state for each in differences for state in (each.before, each.after) if state is not None]
    places = RulePlaces(states)
    return Table(_COLUMNS, list(_rows(differences, places))).without_empty_columns()


def _rows(differences: Iterable[Difference], places: RulePlaces) -> Iterator[tuple[str, ...]]:
    for each in differences:
        state = each.after or each.before
        for name, count in each.spans:
            yield (
                name,
                f"{count:,}",
                "" if state is None else state.kind,
                state_text(each.before, each.fields),
                state_text(each.after, each.fields),
                _bytes(each.before, count),
                _bytes(each.after, count),
                _rule(each.before, places),
                _rule(each.after, places),
            )


def state_text(state: LayerState | None, fields: Iterable[str]) -> str:
    """What a plan says of a layer: its method, and of the rest what differs.

    `none`, `fp8`, `fp8, input fp8 per tensor static`, `none, KV cache fp8 per tensor static`.
    """
    if state is None:
        return _NOT_THERE
    fields = set(fields)
    method = state.scheme.method
    spec = METHODS[method]
    pieces = [method]
    if method == "none" and state.stored is not None:
        pieces.append(as_stored_text(state.stored))
    for name, value, standard in (
        ("weight", state.scheme.weight, spec.weight),
        ("input", state.scheme.input, spec.input),
    ):
        # Where the method differs, what it brings along goes without saying.
        if name in fields and value is not None and (value != standard or "method" not in fields):
            pieces.append(f"{name} {quantization_text(value)}")
    if "output" in fields:
        pieces.append(f"output {quantization_text(state.scheme.output) or 'as computed'}")
    if "kv_cache" in fields:
        pieces.append(f"KV cache {quantization_text(state.scheme.kv_cache) or 'as computed'}")
    if "kind" in fields:
        pieces.append(state.kind)
    if "shape" in fields:
        pieces.append(shape_text(state.shape) or "no weight")
    if "dtype" in fields or ("stored" in fields and state.stored is None):
        pieces.append(state.dtype or "dtype unknown")
    return ", ".join(pieces)


def _bytes(state: LayerState | None, count: int) -> str:
    if state is None or state.bytes == 0:
        return ""
    return "unknown" if state.bytes is None else bytes_text(state.bytes * count)


def _rule(state: LayerState | None, places: RulePlaces) -> str:
    if state is None:
        return ""
    rules, where = rule_texts(state, places)
    return f"{rules} at {where}" if where else rules
