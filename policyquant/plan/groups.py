"""Fused groups: layers that an engine runs as one must agree."""

from __future__ import annotations

from collections.abc import Iterator

from policyquant.inventory.layers import Indices
from policyquant.plan.assignment import Run
from policyquant.plan.context import Context
from policyquant.plan.decide import WEIGHT_KINDS, Decision
from policyquant.plan.ranges import Ranges, from_positions, intersection, union
from policyquant.plan.spans import spans, unit_spans
from policyquant.plan.units import Unit

Member = tuple[Unit, Ranges]


def check_groups(context: Context) -> None:
    """Report every fused group whose members that exist disagree (PQ105), and every layer whose parts do (PQ106)."""
    _check_parts(context)
    for label, members in _groups(context).items():
        _check_label(context, label, members)
    for number, patterns in enumerate(context.policy.groups):
        reached: dict[int, Ranges] = {}
        for pattern in patterns:
            match = context.matcher.match(pattern)
            place = str(context.policy.groups_locations[number])
            if match.namespace is None:
                context.add(
                    "PQ115", "error", f"{place}: the group member {pattern.text!r} reaches no layer", (), (place,)
                )
            for unit, ranges in match.reach.items():
                reached[unit] = union(reached.get(unit, ()), ranges)
        _check_declared(context, reached)


def _groups(context: Context) -> dict[str, list[Unit]]:
    result: dict[str, list[Unit]] = {}
    for unit in context.units:
        if unit.part.group is not None:
            result.setdefault(unit.part.group.label, []).append(unit)
    return result


def _same(first: Decision, second: Decision) -> bool:
    return first is second or first.scheme == second.scheme


def _check_label(context: Context, label: str, units: list[Unit]) -> None:
    runs = [run for unit in units for run in context.assignment.runs(unit)]
    if all(_same(runs[0][2], run[2]) for run in runs):
        return
    disagreements: dict[tuple[Decision, Decision], dict[int, tuple[Unit, list[int]]]] = {}
    by_key: dict[Indices, list[tuple[Unit, Run]]] = {}
    for unit in units:
        assert unit.part.group is not None
        keyed = unit.by_key(unit.part.group.positions)
        for key, ranges in keyed.items():
            by_key.setdefault(key, []).extend((unit, run) for run in context.assignment.within(unit, ranges))
    for members in by_key.values():
        first_unit, first = members[0]
        other = next(
            (
                (unit, run)
                for unit, run in members
                # Parts of one layer are checked as such.
                if not _same(run[2], first[2]) and not (unit.layer is first_unit.layer and _has_parts(context, unit))
            ),
            None,
        )
        if other is None:
            continue
        involved = disagreements.setdefault((first[2], other[1][2]), {})
        for unit, run in ((first_unit, first), other):
            involved.setdefault(unit.number, (unit, []))[1].extend(range(run[0], run[1]))
    _report(context, disagreements, label)


def _report(
    context: Context,
    disagreements: dict[tuple[Decision, Decision], dict[int, tuple[Unit, list[int]]]],
    label: str,
) -> None:
    for (first, second), involved in disagreements.items():
        layers = context.spans((unit, from_positions(sorted(set(members)))) for unit, members in involved.values())
        context.add(
            "PQ105",
            "error",
            f"layers that are fused as {label.replace('#', 'N')} disagree: {describe(first)}"
            f" {context.because(first)}, but {describe(second)} {context.because(second)}",
            layers,
            (*context.places(first), *context.places(second)),
        )


def _check_declared(context: Context, reached: dict[int, Ranges]) -> None:
    """Groups that the policy adds: members under one parent module are joined, as far as weight methods take them."""
    by_parent: dict[str, list[tuple[Unit, int]]] = {}
    for number, ranges in reached.items():
        unit = context.units[number]
        if unit.layer.kind not in WEIGHT_KINDS:
            continue
        for start, stop in ranges:
            for member in range(start, stop):
                parent = unit.name(member).rpartition(".")[0]
                by_parent.setdefault(parent, []).append((unit, member))
    disagreements: dict[tuple[Decision, Decision], dict[int, tuple[Unit, list[int]]]] = {}
    for members in by_parent.values():
        first = context.assignment.at(*members[0])
        for unit, member in members[1:]:
            other = context.assignment.at(unit, member)
            if not _same(first, other):
                involved = disagreements.setdefault((first, other), {})
                for one, position in (members[0], (unit, member)):
                    involved.setdefault(one.number, (one, []))[1].append(position)
    _report(context, disagreements, "a group of the policy")


def _has_parts(context: Context, unit: Unit) -> bool:
    return len(context.units_of_layer[unit.layer]) > 1 or unit.part.repeats > 0


def _check_parts(context: Context) -> None:
    for units in context.units_of_layer.values():
        if not _has_parts(context, units[0]):
            continue
        runs = [run for unit in units for run in context.assignment.runs(unit)]
        if all(_same(runs[0][2], run[2]) for run in runs):
            continue
        reported: set[frozenset[Decision]] = set()
        for layers, (first_name, first), (second_name, second) in _differing(context, units):
            if frozenset((first, second)) in reported:
                continue
            reported.add(frozenset((first, second)))
            context.add(
                "PQ106",
                "error",
                f"this is stored as one layer, but its parts differ: {first_name} is {describe(first)}"
                f" {context.because(first)}, {second_name} is {describe(second)} {context.because(second)}",
                _layer_spans(units[0], layers),
                (*context.places(first), *context.places(second)),
            )


def _differing(
    context: Context, units: list[Unit]
) -> Iterator[tuple[Ranges, tuple[str, Decision], tuple[str, Decision]]]:
    """Layers of which two parts (or two repeats of one) differ, with the parts, folded, and their decisions."""
    by_decision: list[tuple[Unit, Decision, Ranges]] = []
    for unit in units:
        merged: dict[Decision, Ranges] = {}
        for start, stop, decision in context.assignment.runs(unit):
            merged[decision] = union(merged.get(decision, ()), ((start, stop),))
        by_decision.extend((unit, decision, members) for decision, members in merged.items())
    for position, (unit, decision, members) in enumerate(by_decision):
        for other_unit, other, other_members in by_decision[position + 1 :]:
            if not _same(decision, other):
                common = intersection(unit.layer_ranges(members), other_unit.layer_ranges(other_members))
                if common:
                    yield (
                        common,
                        (_part_name(unit, members, common), decision),
                        (_part_name(other_unit, other_members, common), other),
                    )


def _part_name(unit: Unit, members: Ranges, layers: Ranges) -> str:
    """The parts among `members` that belong to the first of `layers`, which stands for the others."""
    return unit_spans(unit, intersection(members, (unit.members_of_layer(layers[0][0]),)))[0]


def _layer_spans(unit: Unit, layers: Ranges) -> list[str]:
    members = [unit.layer.indices[i] for start, stop in layers for i in range(start, stop)]
    return spans(unit.layer.names["checkpoint"][0], members)


def describe(decision: Decision) -> str:
    """A scheme in a few words, enough to see how two differ."""
    scheme = decision.scheme
    if scheme.method == "none":
        text = "none"
    else:
        text = f"{scheme.method} (weight {scheme.weight}"
        text += f", input {scheme.input})" if scheme.input is not None else ")"
    if scheme.output is not None:
        text += f" with output {scheme.output}"
    return text
