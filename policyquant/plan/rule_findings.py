"""What there is to say about each rule, once every layer is decided."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from policyquant.findings import Level
from policyquant.inventory.kinds import Kind
from policyquant.inventory.layers import Namespace, own_name
from policyquant.plan.context import Context
from policyquant.plan.decide import Decision
from policyquant.plan.matching import Match
from policyquant.plan.names import NameTree
from policyquant.plan.ranges import Ranges, union
from policyquant.plan.suggest import suggestion
from policyquant.plan.units import units_of
from policyquant.policy.methods import METHODS
from policyquant.policy.patterns import Pattern, PatternError
from policyquant.policy.policy import Rule

Layers = dict[int, Ranges]


@dataclass(eq=False)
class _Record:
    """What became of one rule on all layers that it reached."""

    reached: Layers = field(default_factory=dict)
    applied: bool = False
    remains: bool = False
    """Whether anything of it is in a final scheme."""
    stopped: Layers = field(default_factory=dict)
    passed: dict[str, Layers] = field(default_factory=dict)
    """Layers by the reason why it passed over them."""
    beaten_by: dict[int, None] = field(default_factory=dict)
    named_by_wildcard: Layers = field(default_factory=dict)


def check_rules(context: Context) -> None:
    """Report rules that reach nothing, take nothing, are stopped or overruled everywhere, and what else a person who
    wrote them would want to know."""
    records = _records(context)
    for number, (rule, record) in enumerate(zip(context.policy.rules, records, strict=True)):
        dead = [m for m in context.matches[number] if m.namespace is None]
        for match in dead:
            _reaches_nothing(context, rule, match.pattern)
        if not record.reached and (rule.kinds is not None or not dead):
            _no_such_kind(context, rule)
        if record.reached:
            _took_nothing(context, rule, record)
        _other_namespaces(context, rule, number)
        _prediction_layers(context, rule, number)
        if record.named_by_wildcard and rule.origin != "preset":
            layers = context.spans(record.named_by_wildcard)
            kinds = sorted({context.units[n].layer.kind for n in record.named_by_wildcard})
            context.add(
                "PQ303",
                "note",
                f"{_at(rule)}: the wildcard names protected {_plural(kinds)} and so decides for them",
                layers,
                (str(rule.location),),
            )


def _at(rule: Rule) -> str:
    return f"{rule.location}: {rule.text!r}"


def _plural(kinds: list[Kind]) -> str:
    return " and ".join(f"{kind}s" for kind in kinds)


def _records(context: Context) -> list[_Record]:
    records = [_Record() for _ in context.policy.rules]
    for unit in context.units:
        for start, stop, decision in context.assignment.runs(unit):
            _note(context, records, unit.number, ((start, stop),), decision)
    return records


def _note(context: Context, records: list[_Record], unit: int, ranges: Ranges, decision: Decision) -> None:
    remaining = {hit.rule for hit in (decision.hit, *decision.refined_by) if hit is not None}
    protected = context.units[unit].layer.kind in context.policy.protect
    for step in decision.steps:
        if step.hit is None:
            continue
        record = records[step.hit.rule]
        _add(record.reached, unit, ranges)
        if step.effect == "stopped":
            _add(record.stopped, unit, ranges)
        elif step.effect == "passes":
            _add(record.passed.setdefault(step.reason, {}), unit, ranges)
        else:
            record.applied = True
            if step.hit.rule in remaining and decision.decided_by != "tie":
                record.remains = True
            elif decision.hit is not None:
                record.beaten_by.setdefault(decision.hit.rule)
            rule = context.rule(step.hit)
            if protected and rule.fields.method != "none" and step.hit.named and step.hit.pattern >= 0:
                pattern = rule.patterns[step.hit.pattern]
                last = pattern.text.rpartition(".")[2]
                if rule.kinds is None and (pattern.is_regex or any(c in last for c in "*?[")):
                    _add(record.named_by_wildcard, unit, ranges)


def _add(layers: Layers, unit: int, ranges: Ranges) -> None:
    layers[unit] = union(layers.get(unit, ()), ranges)


# --- a rule that reaches nothing -------------------------------------------------------------------------------------


def _reaches_nothing(context: Context, rule: Rule, pattern: Pattern) -> None:
    place = str(rule.location)
    suffix = _tensor_suffix(context, pattern)
    if suffix is not None:
        context.add(
            "PQ102",
            "note" if rule.origin == "preset" else "error",
            f"{place}: {pattern.text!r} matches tensors, not layers: patterns name layers, without {suffix!r}",
            (),
            (place,),
        )
        return
    level: Level = "error"
    why = ""
    if rule.optional:
        level, why = "note", " (it is optional)"
    elif rule.origin == "preset":
        level, why = "note", " (a preset's rule)"
    elif is_canonical(pattern):
        level, why = "note", " (a canonical name that this model does not have)"
    hint = suggestion(context, pattern) if level == "error" else ""
    code = "PQ101" if level == "error" else "PQ301"
    context.add(code, level, f"{place}: {pattern.text!r} reaches no layer{why}{hint}", (), (place,))


def _tensor_suffix(context: Context, pattern: Pattern) -> str | None:
    """`.weight`, if the pattern matches the full name of some tensor with that ending."""
    if "." not in pattern.text and "*" not in pattern.text:
        return None
    for unit in context.units:
        for tensor in unit.layer.tensors:
            for form in unit.layer.names["checkpoint"]:
                members = unit.layer.indices if pattern.sensitive else unit.layer.indices[:1]
                if any(pattern.matches(f"{name}.{tensor.suffix}".lstrip(".")) for name in form.fill_all(members)):
                    return f".{tensor.suffix}"
    return None


@cache
def _vocabulary() -> tuple[frozenset[str], NameTree]:
    """First parts of all canonical names, and a tree of all canonical names of all families with a few indices."""
    from policyquant.inventory.architectures.vocabulary import canonical_names
    from policyquant.inventory.layers import LayerSet, Part

    sets = []
    first: set[str] = set()
    for template in canonical_names():
        form = own_name(template)
        first.add(template.partition(".")[0])
        indices = tuple((i,) * len(form.positions) for i in range(128)) if form.positions else ((),)
        names = {"canonical": (form,), "checkpoint": (form,)}
        sets.append(LayerSet("other", indices, names, (Part(template, names, None),)))  # type: ignore[arg-type]
    return frozenset(first), NameTree(units_of(sets), "canonical")


def is_canonical(pattern: Pattern) -> bool:
    """Whether it begins with the literal first part of a canonical name and would reach a name of some family."""
    first = pattern.first_part()
    if first is None:
        return False
    known, tree = _vocabulary()
    return first in known and bool(tree.reach(pattern))


def _no_such_kind(context: Context, rule: Rule) -> None:
    """A rule by kind, alone or on top of patterns that do reach something, that is left with no layer."""
    level: Level = "note" if rule.optional or rule.origin == "preset" else "error"
    context.add(
        "PQ101" if level == "error" else "PQ301",
        level,
        f"{_at(rule)} reaches no layer: the model has none of that kind{' there' if rule.patterns else ''}",
        (),
        (str(rule.location),),
    )


# --- a rule that reaches something, in vain ----------------------------------------------------------------------------


def _took_nothing(context: Context, rule: Rule, record: _Record) -> None:
    own = rule.origin != "preset"
    place = (str(rule.location),)
    if record.applied:
        if not record.remains and own:
            winners = ", ".join(str(context.policy.rules[n].location) for n in record.beaten_by) or "ties"
            rules = (*place, *(str(context.policy.rules[n].location) for n in record.beaten_by))
            context.add(
                "PQ201",
                "warning",
                f"{_at(rule)} decides nothing: later rules overrule it everywhere ({winners})",
                context.spans(record.reached),
                rules,
            )
        return
    if record.stopped:
        if own:
            context.add(
                "PQ202",
                "warning",
                f"{_at(rule)} is stopped by protection everywhere; to quantize {_names(context, record.stopped)},"
                f" name it: {_naming(context, record.stopped)}",
                context.spans(record.stopped),
                place,
            )
        return
    reasons = "; ".join(sorted(record.passed)) or "nothing it says applies"
    level: Level = "error" if own and not rule.optional else "note"
    if rule.fields.method is None:
        code = "PQ104" if level == "error" else "PQ302"
        message = f"{_at(rule)} has nothing to refine or set: {reasons}"
    else:
        code = "PQ103" if level == "error" else "PQ302"
        takes = ", ".join(sorted(METHODS[rule.fields.method].kinds))
        message = f"{_at(rule)} takes nothing of what it reaches: {reasons} ({rule.fields.method} takes {takes})"
    context.add(code, level, message, context.spans(record.reached), place)


def _names(context: Context, layers: Layers) -> str:
    return ", ".join(context.spans(layers)[:3])


def _naming(context: Context, layers: Layers) -> str:
    kinds = sorted({context.units[number].layer.kind for number in layers})
    last = sorted({"*." + span.rpartition(".")[2] for span in context.spans(layers)})
    return f"{', '.join(repr(text) for text in last[:3])}, or `kind: {kinds[0]}`"


# --- names that would reach more ---------------------------------------------------------------------------------------


def _other_namespaces(context: Context, rule: Rule, number: int) -> None:
    if rule.origin == "preset":
        return
    for match in context.matches[number]:
        for namespace, added in _added(context, rule, match):
            context.add(
                "PQ203",
                "warning",
                f"{rule.location}: {match.pattern.text!r} is a pattern over {match.namespace} names, where it reaches"
                f" something; as {namespace} names it would also reach {_names(context, added)}",
                context.spans(added),
                (str(rule.location),),
            )


def _added(context: Context, rule: Rule, match: Match) -> list[tuple[Namespace, Layers]]:
    result = []
    for namespace, added in match.elsewhere:
        wanted = {n: r for n, r in added.items() if rule.kinds is None or context.units[n].layer.kind in rule.kinds}
        if wanted:
            result.append((namespace, wanted))
    return result


def _prediction_layers(context: Context, rule: Rule, number: int) -> None:
    """A canonical rule for `decoder.…` says nothing of the prediction layers, which are easily forgotten."""
    if rule.origin == "preset":
        return
    for match in context.matches[number]:
        if match.namespace != "canonical" or match.pattern.first_part() != "decoder":
            continue
        try:
            twin = Pattern.compile("mtp" + match.pattern.text.removeprefix("decoder"))
        except PatternError:
            continue
        found = context.matcher.trees["canonical"].reach(twin)
        left: Layers = {}
        for unit_number, ranges in found.items():
            unit = context.units[unit_number]
            if rule.kinds is not None and unit.layer.kind not in rule.kinds:
                continue
            for start, stop, decision in context.assignment.within(unit, ranges):
                if all(step.hit is None or step.hit.rule != number for step in decision.steps) and (
                    rule.fields.method is not None and decision.scheme.method != rule.fields.method
                ) and unit.layer.kind in METHODS[rule.fields.method].kinds - context.policy.protect:
                    _add(left, unit_number, ((start, stop),))
        if left:
            context.add(
                "PQ304",
                "note",
                f"{rule.location}: {match.pattern.text!r} leaves the prediction layers to another decision;"
                f" {twin.text!r} would reach them",
                context.spans(left),
                (str(rule.location),),
            )
