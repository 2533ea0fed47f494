"""What a pattern would have reached besides: in another namespace, or in the prediction layers."""

from __future__ import annotations

from policyquant.errors import Location
from policyquant.inventory.kinds import Kind
from policyquant.plan.context import Context
from policyquant.plan.matching import Match
from policyquant.plan.units import Reach, add_members
from policyquant.policy.methods import METHODS
from policyquant.policy.patterns import Pattern, PatternError
from policyquant.policy.policy import Rule


def check_namespaces(context: Context) -> None:
    """Warn of patterns that would reach more in another namespace (PQ203); note rules for `decoder` that leave the
    prediction layers to another decision (PQ304)."""
    policy = context.policy
    for number, rule in enumerate(policy.rules):
        if rule.origin == "preset":
            continue
        for match in context.matches[number]:
            _other_namespaces(context, match, rule.kinds, rule.location)
            _prediction_layers(context, match, rule, number)
    for patterns, location in zip(policy.groups, policy.groups_locations, strict=True):
        for pattern in patterns:
            _other_namespaces(context, context.matcher.match(pattern), None, location)
    for expectation in policy.expected_layers:
        _other_namespaces(context, context.matcher.match(expectation.pattern), None, expectation.location)


def _other_namespaces(context: Context, match: Match, kinds: frozenset[Kind] | None, location: Location) -> None:
    namespaces: dict[tuple[str, ...], list[str]] = {}
    for namespace, reach in match.elsewhere:
        added = {n: r for n, r in reach.items() if kinds is None or context.units[n].layer.kind in kinds}
        if added:
            namespaces.setdefault(tuple(sorted(context.spans(added))), []).append(namespace)
    for layers, alike in namespaces.items():
        context.add(
            "PQ203",
            "warning",
            f"{location}: {match.pattern.text!r} is a pattern over {match.namespace} names, where it reaches"
            f" something; as {' or '.join(alike)} names it would also reach {', '.join(layers[:3])}",
            layers,
            (str(location),),
        )


def _prediction_layers(context: Context, match: Match, rule: Rule, number: int) -> None:
    """A canonical rule for `decoder.…` says nothing of the prediction layers, which are easily forgotten."""
    method = rule.fields.method
    if method is None or match.namespace != "canonical" or match.pattern.first_part() != "decoder":
        return
    try:
        twin = Pattern.compile("mtp" + match.pattern.text.removeprefix("decoder"))
    except PatternError:
        return
    kinds = METHODS[method].kinds - context.policy.protect
    if rule.kinds is not None:
        kinds &= rule.kinds
    left: Reach = {}
    for unit_number, ranges in context.matcher.trees["canonical"].reach(twin).items():
        unit = context.units[unit_number]
        if unit.layer.kind not in kinds:
            continue
        for start, stop, decision in context.assignment.within(unit, ranges):
            reached = any(step.hit is not None and step.hit.rule == number for step in decision.steps)
            if not reached and decision.scheme.method != method:
                add_members(left, unit_number, ((start, stop),))
    if left:
        context.add(
            "PQ304",
            "note",
            f"{rule.location}: {match.pattern.text!r} leaves the prediction layers to another decision;"
            f" {twin.text!r} would reach them",
            context.spans(left),
            (str(rule.location),),
        )
