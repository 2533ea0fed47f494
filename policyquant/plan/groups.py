"""Fused groups: layers that an engine runs as one must agree."""

from __future__ import annotations

from collections.abc import Iterator

from policyquant.inventory.layers import Indices
from policyquant.plan.assignment import Run
from policyquant.plan.context import Context
from policyquant.plan.decide import Decision
from policyquant.plan.ranges import Ranges, from_positions, intersection, union
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
        other = next(((unit, run) for unit, run in members if not _same(run[2], first[2])), None)
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
            f"layers that are fused as {label.replace('#', 'N')} disagree: {describe(first)} by"
            f" {context.who(first.hit)}, but {describe(second)} by {context.who(second.hit)}",
            layers,
            (context.place(first.hit), context.place(second.hit)),
        )


def _check_declared(context: Context, reached: dict[int, Ranges]) -> None:
    """Groups that the policy adds: members under one parent module are joined."""
    by_parent: dict[str, list[tuple[Unit, int]]] = {}
    for number, ranges in reached.items():
        unit = context.units[number]
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


def _check_parts(context: Context) -> None:
    for units in context.units_of_layer.values():
        if len(units) == 1 and not units[0].part.repeats:
            continue
        runs = [run for unit in units for run in context.assignment.runs(unit)]
        if all(_same(runs[0][2], run[2]) for run in runs):
            continue
        reported: set[tuple[Decision, Decision]] = set()
        for layers, (first_unit, first), (second_unit, second) in _differing(context, units):
            if (first, second) in reported:
                continue
            reported.add((first, second))
            part, other = (u.part.names["checkpoint"][0].template for u in (first_unit, second_unit))
            context.add(
                "PQ106",
                "error",
                f"this is stored as one layer, but its parts differ: {part.replace('#', 'N')} is {describe(first)} by"
                f" {context.who(first.hit)}, {other.replace('#', 'N')} is {describe(second)} by"
                f" {context.who(second.hit)}",
                _layer_spans(units[0], layers),
                (context.place(first.hit), context.place(second.hit)),
            )


def _differing(
    context: Context, units: list[Unit]
) -> Iterator[tuple[Ranges, tuple[Unit, Decision], tuple[Unit, Decision]]]:
    """Layers of which two parts (or two repeats of one) differ, with the parts and their decisions."""
    by_decision: list[tuple[Unit, Decision, Ranges]] = []
    for unit in units:
        merged: dict[Decision, Ranges] = {}
        for start, stop, decision in context.assignment.runs(unit):
            merged[decision] = union(merged.get(decision, ()), unit.layer_ranges(((start, stop),)))
        by_decision.extend((unit, decision, ranges) for decision, ranges in merged.items())
    for position, (unit, decision, ranges) in enumerate(by_decision):
        for other_unit, other, other_ranges in by_decision[position + 1 :]:
            if not _same(decision, other):
                common = intersection(ranges, other_ranges)
                if common:
                    yield common, (unit, decision), (other_unit, other)


def _layer_spans(unit: Unit, layers: Ranges) -> list[str]:
    from policyquant.plan.spans import spans

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
