"""Shapes that a scheme cannot take, found from the header before any data is read."""

from __future__ import annotations

from policyquant.plan.context import Context
from policyquant.plan.decide import Decision
from policyquant.plan.units import Reach, Unit, add_members
from policyquant.policy.methods import METHODS


def check_shapes(context: Context) -> None:
    """Report weights whose input dimension leaves a ragged group where the method allows none (PQ107)."""
    found: dict[tuple[Decision, int, int], Reach] = {}
    for unit in context.units:
        shape = unit.shape
        if not shape:
            continue
        for start, stop, decision in context.assignment.runs(unit):
            group = _strict_group(decision)
            if group is not None and shape[-1] % group:
                add_members(found.setdefault((decision, shape[-1], group), {}), unit.number, ((start, stop),))
    for (decision, columns, group), reached in found.items():
        shapes = sorted({_shape(context.units[number]) for number in reached})
        context.add(
            "PQ107",
            "error",
            f"{decision.scheme.method} {context.because(decision)} needs an input dimension that is a multiple of"
            f" {group}, but it is {columns} (shape {', '.join(shapes)}); {_advice(decision, columns)}",
            context.spans(reached),
            context.places(decision),
        )


def _strict_group(decision: Decision) -> int | None:
    weight = decision.scheme.weight
    if weight is None or weight.granularity != "group" or METHODS[decision.scheme.method].ragged:
        return None
    return weight.group


def _advice(decision: Decision, columns: int) -> str:
    legal = [g for g in METHODS[decision.scheme.method].weight_choices.group if columns % g == 0]
    if legal:
        return f"group {' or '.join(map(str, legal))} divides it; or add a later rule for these layers"
    return "no group of this method divides it; add a later rule for these layers, such as int8_weight_only or none"


def _shape(unit: Unit) -> str:
    return "x".join(map(str, unit.shape or ()))
