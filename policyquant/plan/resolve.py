"""Resolution: inventory × policy = plan. Decides from names alone; no weight is read.

rules reach units      every pattern once over the names, folded      (matching)
histories              which rules reached each member, in order      (history)
decisions              the precedence of the language                 (decide)
ties, outputs          decisions that depend on those of other layers
checks                 groups, shapes, expectations, dead rules
rows                   layers alike in all but their indices
"""

from __future__ import annotations

from policyquant.collector import collector_paused
from policyquant.errors import PolicyQuantError
from policyquant.inventory.inventory import Inventory
from policyquant.inventory.ranges import Ranges, difference
from policyquant.plan.assignment import Assignment
from policyquant.plan.context import Context
from policyquant.plan.decide import Decider
from policyquant.plan.expectations import check_bits, check_layers
from policyquant.plan.explain import Explainer
from policyquant.plan.groups import check_groups
from policyquant.plan.history import History, Hit, Segments
from policyquant.plan.make_rows import make_rows
from policyquant.plan.matching import Match, Matcher
from policyquant.plan.namespace_findings import check_namespaces
from policyquant.plan.outputs import settle_outputs
from policyquant.plan.plan import ModelInfo, Plan, PolicyInfo
from policyquant.plan.policy_findings import check_policy
from policyquant.plan.rule_findings import check_rules
from policyquant.plan.shapes import check_shapes
from policyquant.plan.summary import total
from policyquant.plan.ties import settle_ties
from policyquant.plan.units import Unit, units_of
from policyquant.policy.policy import Policy, Rule


@collector_paused()
def resolve(policy: Policy, inventory: Inventory) -> Plan:
    """Decide a scheme for every layer of a model.

    Nothing that a policy or a model says raises: what is wrong is in `plan.findings`, and `plan.errors()` says what
    must stop work.

    Raises:
        PolicyQuantError: what is given is not a policy and an inventory.
    """
    if not isinstance(policy, Policy):
        raise PolicyQuantError(f"resolve takes a Policy (see load_policy), not {type(policy).__name__}")
    if not isinstance(inventory, Inventory):
        raise PolicyQuantError(f"resolve takes an Inventory (see Inventory.open), not {type(inventory).__name__}")
    units = units_of(inventory.sets)
    context = Context(policy, units, Matcher(units), inventory.model_dtype)
    context.matcher.prepare(pattern for rule in policy.rules for pattern in rule.patterns)
    context.assignment = _decide(context)
    settle_ties(context)
    settle_outputs(context)
    check_rules(context)
    check_namespaces(context)
    check_groups(context)
    check_shapes(context)
    check_policy(context)
    check_layers(context)
    rows = make_rows(context)
    everything = total(rows)
    check_bits(context, everything.bits_after)
    model = ModelInfo(
        inventory.name,
        inventory.architecture,
        inventory.source,
        everything.layers,
        everything.parameters,
        everything.bytes_before,
    )
    findings = (*inventory.findings, *context.findings)
    order = {"error": 0, "warning": 1, "note": 2}
    return Plan(
        model,
        PolicyInfo(policy.source, policy.sha256),
        rows,
        tuple(sorted(findings, key=lambda finding: order[finding.level])),
        Explainer(context),
    )


def _decide(context: Context) -> Assignment:
    root = History()
    segments = [Segments(unit.count, root) for unit in context.units]
    for number, rule in enumerate(context.policy.rules):
        matches = [context.matcher.match(pattern) for pattern in rule.patterns]
        context.matches.append(matches)
        if not rule.patterns:
            for unit in context.units:
                if rule.kinds is not None and unit.layer.kind in rule.kinds:
                    segments[unit.number].record(unit.all, Hit(number, -1, None, True))
        for position, match in enumerate(matches):
            for unit_number, ranges in match.reach.items():
                unit = context.units[unit_number]
                if rule.kinds is None or unit.layer.kind in rule.kinds:
                    named = _named(context, rule, match, unit, ranges)
                    segments[unit_number].record(named, Hit(number, position, match.namespace, True))
                    rest = difference(ranges, named)
                    segments[unit_number].record(rest, Hit(number, position, match.namespace, False))
    decider = Decider(context.policy, context.model_dtype)
    return Assignment(
        context.units,
        [
            [(start, stop, decider.decide(context.facts(unit), history)) for start, stop, history in runs]
            for unit, runs in zip(context.units, segments, strict=True)
        ],
    )


def _named(context: Context, rule: Rule, match: Match, unit: Unit, ranges: Ranges) -> Ranges:
    """The members of a unit, of those in `ranges`, that a rule names; none where that does not matter."""
    if rule.kinds is not None:
        return ranges
    if match.namespace is None or not _naming_matters(context, unit):
        return ()
    return context.matcher.trees[match.namespace].named(match.pattern, unit, ranges)


def _naming_matters(context: Context, unit: Unit) -> bool:
    """Protection asks whether a rule names a layer; so do routers, which no broad rule quantizes, and ties."""
    kind = unit.layer.kind
    return kind in context.policy.protect or kind in ("router", "embedding", "head") or unit in context.sharing
