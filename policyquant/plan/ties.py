"""Tied weights: several names, one storage, one decision."""

from __future__ import annotations

from dataclasses import replace

from policyquant.plan.context import Context
from policyquant.plan.decide import Decision
from policyquant.plan.groups import describe
from policyquant.plan.units import Unit
from policyquant.policy.methods import METHODS


def settle_ties(context: Context) -> None:
    """Give all names of one storage one decision; report two that contradict (PQ108) and kinds that the deciding
    method does not take (PQ109). With `untie: true` every name keeps its own."""
    if context.policy.untie:
        return
    by_name = {
        unit.layer.names["checkpoint"][0].template: unit for unit in context.units if not unit.layer.indices[0]
    }
    storages: dict[str, list[Unit]] = {}
    for unit in context.units:
        if unit.layer.tied_to is not None and unit.layer.tied_to in by_name:
            storages.setdefault(unit.layer.tied_to, [by_name[unit.layer.tied_to]]).append(unit)
    for units in storages.values():
        _settle(context, units)


def _settle(context: Context, units: list[Unit]) -> None:
    decisions = [context.assignment.at(unit, 0) for unit in units]
    names = [unit.name(0) for unit in units]
    named = [d for d in decisions if d.named]
    chosen = named[0] if named else None
    if chosen is not None:
        other = next((d for d in named if not _agree(d, chosen)), None)
        if other is not None:
            context.add(
                "PQ108",
                "error",
                f"{', '.join(names)} share one storage, but {describe(chosen)} is asked for by"
                f" {context.who(chosen.hit)} and {describe(other)} by {context.who(other.hit)}; decide the same, or"
                " write `untie: true` to store them apart",
                names,
                (context.place(chosen.hit), context.place(other.hit)),
            )
            return
    else:
        chosen = next((d for d in decisions if d.scheme.method == "none" and d.decided_by == "rule"), None)
        chosen = chosen or next((d for d in decisions if d.scheme.method == "none"), decisions[0])
    if chosen.scheme.method != "none":
        spec = METHODS[chosen.scheme.method]
        refused = [unit for unit in units if unit.layer.kind not in spec.kinds]
        if refused:
            kinds = ", ".join(sorted({unit.layer.kind for unit in refused}))
            context.add(
                "PQ109",
                "error",
                f"{', '.join(names)} share one storage; {context.who(chosen.hit)} asks for {chosen.scheme.method},"
                f" which does not take {kinds} layers; write `untie: true` to store them apart, or choose a method"
                " that takes both (fp8_weight_only, int8_weight_only, int4_weight_only)",
                names,
                (context.place(chosen.hit),),
            )
            return
    for unit, decision in zip(units, decisions, strict=True):
        if not _agree(decision, chosen):
            context.assignment.change(unit, unit.all, lambda d: _tied(d, chosen))


def _tied(decision: Decision, chosen: Decision) -> Decision:
    scheme = replace(
        chosen.scheme, output=decision.scheme.output, kv_cache=decision.scheme.kv_cache
    )
    return replace(decision, scheme=scheme, decided_by="tie", hit=chosen.hit)


def _agree(first: Decision, second: Decision) -> bool:
    one, other = first.scheme, second.scheme
    return (one.method, one.weight, one.input) == (other.method, other.weight, other.input)
