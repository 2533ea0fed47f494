"""The layers of a plan that a pattern reaches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from policyquant.inventory.layers import Indices, LayerSet, Part
from policyquant.plan.matching import Matcher
from policyquant.plan.plan import Plan
from policyquant.plan.rows import Row
from policyquant.plan.units import Unit, units_of
from policyquant.policy.patterns import Pattern


def select(plan: Plan, pattern: Pattern) -> tuple[Row, ...]:
    """The rows of `plan`, less the layers that `pattern` does not reach (a layer is reached if a part of it is).

    In a plan that was just resolved patterns see all names of a layer; a plan read from a file has the checkpoint's.
    """
    units, matcher = _of_plan(plan)
    reached: dict[str, set[Indices]] = {}
    for number, ranges in matcher.match(pattern).reach.items():
        unit = units[number]
        members = reached.setdefault(unit.layer.name_template, set())
        for start, stop in unit.layer_ranges(ranges):
            members.update(unit.layer.indices[start:stop])
    return tuple(narrowed for row in plan.rows if (narrowed := _narrowed(row, reached.get(row.form.template))))


def _narrowed(row: Row, members: set[Indices] | None) -> Row | None:
    if not members:
        return None
    indices = tuple(each for each in row.indices if each in members)
    if len(indices) == len(row.indices):
        return row
    return replace(row, indices=indices) if indices else None


def _of_plan(plan: Plan) -> tuple[Sequence[Unit], Matcher]:
    context = plan.context
    if context is not None:
        return context.units, context.matcher
    units = units_of([_named_only(row) for row in plan.rows])
    return units, Matcher(units)


def _named_only(row: Row) -> LayerSet:
    """A layer set that has the names of a row, for patterns to run over."""
    forms = [part.form for part in row.parts if len(part.form.positions) == len(row.form.positions)] or [row.form]
    parts = tuple(Part("", {"checkpoint": tuple(dict.fromkeys((form, row.form)))}, row.shape) for form in forms)
    return LayerSet(row.kind, row.indices, {"checkpoint": (row.form,)}, parts)
