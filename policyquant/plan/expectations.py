"""Assertions of the policy about its own outcome."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Final

from policyquant.inventory.ranges import Ranges
from policyquant.plan.context import Context
from policyquant.plan.decide import EMITTERS, Decision
from policyquant.plan.matching import Match
from policyquant.plan.suggest import suggestion
from policyquant.plan.units import Reach, Unit, add_members
from policyquant.policy.methods import METHODS, WEIGHT_KINDS
from policyquant.policy.policy import Fields, LayerExpectation, SchemeFields
from policyquant.policy.scheme import Quantization

_COMPARE: Final[dict[str, Callable[[float, float], bool]]] = {
    "<=": operator.le,
    "<": operator.lt,
    ">=": operator.ge,
    ">": operator.gt,
    "==": operator.eq,
}


def check_layers(context: Context) -> None:
    """Report layers that are not as `expect: layers:` says (PQ111), and expectations that say nothing, because they
    reach no layer or none that could be so (PQ112)."""
    for expectation in context.policy.expected_layers:
        match = context.matcher.match(expectation.pattern)
        place = str(expectation.location)
        if match.namespace is None:
            if not expectation.optional:
                context.add(
                    "PQ112",
                    "error",
                    f"{place}: {expectation.pattern.text!r} is expected but reaches no layer"
                    f"{suggestion(context, expectation.pattern)}; write `optional: true` if that is right",
                    (),
                    (place,),
                )
            continue
        broken: dict[Decision, Reach] = {}
        says_something = False
        for number, ranges in match.reach.items():
            unit = context.units[number]
            concerned = _concerned(context, expectation, match, unit, ranges)
            says_something = says_something or bool(concerned)
            for start, stop, decision in context.assignment.within(unit, concerned):
                if not _holds(expectation, decision):
                    add_members(broken.setdefault(decision, {}), number, ((start, stop),))
        if not says_something and not expectation.optional:
            context.add(
                "PQ112",
                "error",
                f"{place}: {expectation.fields} is expected for {expectation.pattern.text!r}, which reaches no layer"
                " that can be so; write `optional: true` if that is right",
                context.spans(match.reach),
                (place,),
            )
        for decision, reached in broken.items():
            context.add(
                "PQ111",
                "error",
                f"{place}: expected {expectation.fields} for {expectation.pattern.text!r}, but it is"
                f" {decision.scheme} {context.because(decision)}",
                context.spans(reached),
                (place, *context.places(decision)),
            )


def _concerned(context: Context, expectation: LayerExpectation, match: Match, unit: Unit, ranges: Ranges) -> Ranges:
    """The members that what is expected can be said of. Weight methods take a router only where a pattern names it;
    and fields of a weight that could be any method's are not expected of an embedding by the way."""
    fields, kind = expectation.fields, unit.layer.kind
    if not _can_take(fields, unit):
        return ()
    weighs = fields.method not in (None, "none") or fields.weight is not None or fields.input is not None
    only_named = (kind == "router" and weighs) or (kind == "embedding" and weighs and fields.method is None)
    if only_named and match.namespace is not None:
        return context.matcher.trees[match.namespace].named(match.pattern, unit, ranges)
    return ranges


def _can_take(fields: SchemeFields, unit: Unit) -> bool:
    kind = unit.layer.kind
    if fields.method is not None:
        return kind in METHODS[fields.method].kinds
    if fields.kv_cache is not None and not unit.layer.has_kv_cache:
        return False
    if fields.output is not None and kind not in EMITTERS:
        return False
    if fields.weight is not None or fields.input is not None:
        return kind in WEIGHT_KINDS
    return True


def _holds(expectation: LayerExpectation, decision: Decision) -> bool:
    fields, scheme = expectation.fields, decision.scheme
    if fields.method is not None and fields.method != scheme.method:
        return False
    for written, actual in ((fields.weight, scheme.weight), (fields.input, scheme.input)):
        if written is not None and not _within(written, actual):
            return False
    if fields.output is not None and not _value_holds(fields.output, scheme.output):
        return False
    return fields.kv_cache is None or _value_holds(fields.kv_cache, scheme.kv_cache)


def _value_holds(written: str | Fields, actual: str | Quantization | None) -> bool:
    if isinstance(written, str):
        return actual is None if written == "none" else actual == written
    return isinstance(actual, Quantization) and _within(written, actual)


def _within(written: Fields, actual: Quantization | None) -> bool:
    return actual is not None and all(getattr(actual, name) == value for name, value in written.items())


def check_bits(context: Context, bits: float | None) -> None:
    """Report a bits-per-weight expectation that fails (PQ113), or cannot be known (PQ114)."""
    for expectation in context.policy.expected_bits:
        place = str(expectation.location)
        wanted = f"bits_per_weight {expectation.comparison} {expectation.limit:g}"
        if bits is None:
            context.add(
                "PQ114",
                "error",
                f"{place}: {wanted} is expected, but the source does not tell the shapes of all weights",
                (),
                (place,),
            )
        elif not _COMPARE[expectation.comparison](bits, expectation.limit):
            context.add("PQ113", "error", f"{place}: {wanted} is expected, but it is {bits:.4g}", (), (place,))
