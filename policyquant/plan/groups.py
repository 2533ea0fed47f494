"""Fused groups: layers that an engine runs as one must agree."""

from __future__ import annotations

from collections.abc import Iterator

from policyquant.inventory.layers import Indices
from policyquant.inventory.ranges import Ranges, from_positions, intersection, union
from policyquant.plan.assignment import Run
from policyquant.plan.context import Context
from policyquant.plan.decide import Decision
from policyquant.plan.spans import layer_spans, unit_spans
from policyquant.plan.units import Reach, Unit, add_members
from policyquant.policy.methods import WEIGHT_KINDS

_Disagreements = dict[tuple[Decision, Decision], dict[int, tuple[Unit, list[int]]]]
"""Two decisions → the members, by unit, that are fused and got one each."""


def check_groups(context: Context) -> None:
    """Report every fused group whose members that exist disagree (PQ105), every layer whose parts do (PQ106), and
    of the policy's own groups, patterns that reach nothing (PQ115) and groups that join nothing (PQ205)."""
    _check_parts(context)
    for label, members in _groups(context).items():
        _check_label(context, label, members)
    for number, patterns in enumerate(context.policy.groups):
        reached: Reach = {}
        place = str(context.policy.groups_locations[number])
        for pattern in patterns:
            match = context.matcher.match(pattern)
            if match.namespace is None:
                context.add(
                    "PQ115", "error", f"{place}: the group member {pattern.text!r} reaches no layer", (), (place,)
                )
            for unit, ranges in match.reach.items():
                add_members(reached, unit, ranges)
        if reached:
            _check_declared(context, reached, place)


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
    disagreements: _Disagreements = {}
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
        for unit, run in members:
            involved.setdefault(unit.number, (unit, []))[1].extend(range(run[0], run[1]))
    _report(context, disagreements, f"layers that are fused as {label.replace('#', 'N')}", _advice(units))


def _advice(units: list[Unit]) -> str:
    """How to reach all members at once, if they have a fused name."""
    for form in units[0].part.names["checkpoint"]:
        if not form.own:
            return f"; decide {'*.' + form.template.rpartition('.')[2]!r} to reach all of them"
    return ""


def _report(context: Context, disagreements: _Disagreements, who: str, advice: str = "") -> None:
    for (first, second), involved in disagreements.items():
        layers = context.spans((unit, from_positions(sorted(set(members)))) for unit, members in involved.values())
        context.add(
            "PQ105",
            "error",
            f"{who} disagree: {first.scheme} {context.because(first)}, but {second.scheme}"
            f" {context.because(second)}{advice}",
            layers,
            (*context.places(first), *context.places(second)),
        )


def _check_declared(context: Context, reached: Reach, place: str) -> None:
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
    if all(len(members) < 2 for members in by_parent.values()):
        context.add(
            "PQ205",
            "warning",
            f"{place}: this group joins no two layers; only members under one parent module are joined",
            context.spans(reached),
            (place,),
        )
    disagreements: _Disagreements = {}
    for members in by_parent.values():
        first = context.assignment.at(*members[0])
        for unit, member in members[1:]:
            other = context.assignment.at(unit, member)
            if not _same(first, other):
                involved = disagreements.setdefault((first, other), {})
                for one, position in (members[0], (unit, member)):
                    involved.setdefault(one.number, (one, []))[1].append(position)
    _report(context, disagreements, f"layers of one group ({place})")


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
                f"this is stored as one layer, but its parts differ: {first_name} is {first.scheme}"
                f" {context.because(first)}, {second_name} is {second.scheme} {context.because(second)}",
                layer_spans(units[0].layer, layers),
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
