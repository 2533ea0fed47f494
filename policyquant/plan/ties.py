"""Tied weights: several names, one storage, one decision."""

from __future__ import annotations

from dataclasses import replace

from policyquant.inventory.kinds import layers_of
from policyquant.plan.context import Context
from policyquant.plan.decide import Decision
from policyquant.plan.units import Unit
from policyquant.policy.methods import METHODS


def settle_ties(context: Context) -> None:
    """Give all names of one storage one decision; report two that contradict (PQ108) and kinds that the deciding
    method does not take (PQ109). With `untie: true` every name keeps its own."""
    if context.policy.untie:
        return
    for units in context.storages.values():
        _settle(context, units)


def _settle(context: Context, units: list[Unit]) -> None:
    decisions = [context.assignment.at(unit, 0) for unit in units]
    names = [unit.name(0) for unit in units]
    contenders = [d for d in decisions if d.named] or _broad(context, units, decisions)
    chosen = contenders[0]
    other = next((d for d in contenders if not _agree(d, chosen)), None)
    if other is not None:
        context.add(
            "PQ108",
            "error",
            f"{', '.join(names)} share one storage, but {chosen.scheme} is asked for"
            f" {context.because(chosen)} and {other.scheme} {context.because(other)}; decide the same, or"
            " write `untie: true` to store them apart",
            names,
            (*context.places(chosen), *context.places(other)),
        )
        return
    if chosen.scheme.method != "none":
        spec = METHODS[chosen.scheme.method]
        refused = [unit for unit in units if unit.layer.kind not in spec.kinds]
        if refused:
            layers = " and ".join(map(layers_of, sorted({unit.layer.kind for unit in refused})))
            context.add(
                "PQ109",
                "error",
                f"{', '.join(names)} share one storage; {chosen.scheme.method}, asked for {context.because(chosen)},"
                f" does not take {layers}; write `untie: true` to store them apart, or choose a method"
                " that takes both (fp8_weight_only, int8_weight_only, int4_weight_only)",
                names,
                context.places(chosen),
            )
            return
    for unit, decision in zip(units, decisions, strict=True):
        if not _agree(decision, chosen):
            context.assignment.put(unit, unit.all, _tied(decision, chosen))


def _broad(context: Context, units: list[Unit], decisions: list[Decision]) -> list[Decision]:
    """The decisions that count where no rule names one of the names: a `none` wins, and so does a protected name, which
    would be quantized with the rest; any other that nothing decides goes with them."""
    none = [
        decision
        for unit, decision in zip(units, decisions, strict=True)
        if decision.scheme.method == "none"
        and (decision.decided_by != "nothing" or unit.layer.kind in context.policy.protect)
    ]
    none.sort(key=lambda d: d.decided_by != "rule")
    return none or [d for d in decisions if d.scheme.method != "none"] or decisions


def _tied(decision: Decision, chosen: Decision) -> Decision:
    """A decision with the chosen one's weight and input; what it emits is each layer's own affair."""
    scheme = replace(chosen.scheme, output=decision.scheme.output)
    own = decision.output_hit
    refined = [hit for hit in chosen.refined_by if hit != chosen.output_hit]
    return replace(
        decision,
        scheme=scheme,
        decided_by="tie",
        hit=chosen.hit,
        tied_to_nothing=chosen.decided_by in ("nothing", "protection"),
        refined_by=tuple(refined if own is None or own in refined else (*refined, own)),
        beaten=tuple(hit for hit in (*decision.beaten, *decision.refined_by, decision.hit) if hit not in (None, own)),
    )


def _agree(first: Decision, second: Decision) -> bool:
    one, other = first.scheme, second.scheme
    return (one.method, one.weight, one.input) == (other.method, other.weight, other.input)
