"""Quantized outputs: a layer may emit FP8 only if every layer that reads it takes exactly that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from policyquant.inventory.layers import Indices
from policyquant.inventory.ranges import Ranges, intersection
from policyquant.plan.context import Context
from policyquant.plan.decide import Decision
from policyquant.plan.units import Reach, Unit, add_members
from policyquant.policy.policy import Fields
from policyquant.policy.scheme import Quantization


class _Trouble(NamedTuple):
    """Why an output cannot be, alike for many layers."""

    reason: str
    producer: Decision
    readers: tuple[Decision, ...]


def settle_outputs(context: Context) -> None:
    """Complete each short quantized output from its readers; report those that cannot be (PQ110)."""
    troubles: dict[_Trouble, Reach] = {}
    settled: dict[tuple[Decision, Quantization], Decision] = {}
    for unit in context.units:
        for start, stop, decision in list(context.assignment.runs(unit)):
            if decision.output_fields is not None:
                _settle(context, unit, ((start, stop),), decision, troubles, settled)
    for trouble, layers in troubles.items():
        hit = trouble.producer.output_hit
        context.add(
            "PQ110",
            "error",
            f"the output that {context.who_wrote(hit)} sets to {_short(trouble.producer.output_fields)}"
            f" cannot be read: {trouble.reason}",
            context.spans(layers),
            (context.written_at(hit), *(place for reader in trouble.readers for place in context.places(reader))),
        )


def _settle(
    context: Context,
    unit: Unit,
    within: Ranges,
    decision: Decision,
    troubles: dict[_Trouble, Reach],
    settled: dict[tuple[Decision, Quantization], Decision],
) -> None:
    fields = decision.output_fields
    assert fields is not None
    for block, members in unit.blocks.items():
        ranges = intersection(members, within)
        if not ranges:
            continue
        outcome = _read_by(context, unit, block, fields, decision)
        if isinstance(outcome, Quantization):
            # One object for all blocks that end alike, so that they stay one row.
            known = settled.get((decision, outcome))
            if known is None:
                known = replace(decision, scheme=replace(decision.scheme, output=outcome))
                settled[decision, outcome] = known
            context.assignment.put(unit, ranges, known)
        else:
            add_members(troubles.setdefault(outcome, {}), unit.number, ranges)


def _readers(context: Context, unit: Unit, block: Indices) -> Iterator[tuple[Unit, Ranges]]:
    for template in unit.layer.feeds or ():
        for reader in context.by_canonical.get(template, ()):
            ranges = reader.in_block(block)
            if ranges:
                yield reader, ranges


def _read_by(
    context: Context, unit: Unit, block: Indices, fields: Fields, decision: Decision
) -> Quantization | _Trouble:
    """What the output is, as all its readers take it."""
    if unit.layer.feeds is None:
        return _Trouble("which layers read it is not known for this architecture", decision, ())
    agreed: Quantization | None = None
    first: Decision | None = None
    for reader, ranges in _readers(context, unit, block):
        for _, _, other in context.assignment.within(reader, ranges):
            name = reader.layer.names["checkpoint"][0].template.replace("#", "N")
            taken = other.scheme.input
            if taken is None:
                return _Trouble(f"{name} takes no quantized input ({_by(context, other)})", decision, (other,))
            refused = next((f for f, value in fields.items() if getattr(taken, f) != value), None)
            if refused is not None:
                return _Trouble(
                    f"{name} takes {taken}, and the output's {refused} is {fields[refused]} ({_by(context, other)})",
                    decision,
                    (other,),
                )
            if first is None:
                agreed, first = taken, other
            elif taken != agreed:
                return _Trouble(
                    f"its readers differ: {name} takes {taken} ({_by(context, other)}), another {agreed}"
                    f" ({_by(context, first)})",
                    decision,
                    (first, other),
                )
    if agreed is None:
        return _Trouble("no layer reads it as it is", decision, ())
    return agreed


def _by(context: Context, decision: Decision) -> str:
    return f"{decision.scheme.method} {context.because(decision)}"


def _short(fields: Fields | None) -> str:
    return "" if fields is None else str(fields["dtype"]) if len(fields) == 1 else str(fields)
