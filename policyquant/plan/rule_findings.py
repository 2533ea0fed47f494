"""What there is to say about each rule, once every layer is decided."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache

from policyquant.findings import Level
from policyquant.inventory.kinds import layers_of
from policyquant.inventory.layers import own_name
from policyquant.inventory.ranges import Ranges
from policyquant.plan.context import Context
from policyquant.plan.decide import Decision, Field
from policyquant.plan.names import NameTree
from policyquant.plan.suggest import suggestion
from policyquant.plan.units import Reach, add_members, units_of
from policyquant.policy.methods import METHODS
from policyquant.policy.patterns import Pattern
from policyquant.policy.policy import Rule


@dataclass(eq=False)
class _Record:
    """What became of one rule on all layers that it reached."""

    reached: Reach = field(default_factory=dict)
    applied: bool = False
    remains: bool = False
    """Whether anything of it is in a final scheme."""
    stopped: Reach = field(default_factory=dict)
    reasons: set[str] = field(default_factory=set)
    """Why it did nothing to layers."""
    ignored: dict[Field, set[str]] = field(default_factory=dict)
    """Of what it says, what had no effect on some layer though the rest had, and why."""
    took: set[Field] = field(default_factory=set)
    """Of what it says, what had an effect somewhere."""
    beaten_by: dict[int, None] = field(default_factory=dict)
    named_by_wildcard: Reach = field(default_factory=dict)


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
        if record.named_by_wildcard and rule.origin != "preset":
            kinds = sorted({context.units[n].layer.kind for n in record.named_by_wildcard})
            layers = " and ".join(map(layers_of, kinds))
            context.add(
                "PQ303",
                "note",
                f"{_at(rule)}: the wildcard names protected {layers} and so decides for them",
                context.spans(record.named_by_wildcard),
                (str(rule.location),),
            )


def _at(rule: Rule) -> str:
    return f"{rule.location}: {rule.text!r}"


def _records(context: Context) -> list[_Record]:
    records = [_Record() for _ in context.policy.rules]
    for unit in context.units:
        for start, stop, decision in context.assignment.runs(unit):
            _note(context, records, unit.number, ((start, stop),), decision)
    return records


def _note(context: Context, records: list[_Record], unit: int, ranges: Ranges, decision: Decision) -> None:
    # A tied layer may be decided by a rule that reached only the layer it is tied to, and counts there.
    decider = None if decision.decided_by == "tie" else decision.hit
    remaining = {hit.rule for hit in (decider, *decision.refined_by) if hit is not None}
    protected = context.units[unit].layer.kind in context.policy.protect
    for step in decision.steps:
        if step.hit is None:
            continue
        record = records[step.hit.rule]
        add_members(record.reached, unit, ranges)
        if step.effect in ("stopped", "passes"):
            record.reasons.add(step.reason)
            if step.effect == "stopped":
                add_members(record.stopped, unit, ranges)
        else:
            record.applied = True
            record.took.update(step.took)
            for said, reason in step.ignored:
                record.ignored.setdefault(said, set()).add(reason)
            if step.hit.rule in remaining:
                record.remains = True
            elif decision.hit is not None:
                record.beaten_by.setdefault(decision.hit.rule)
            rule = context.rule(step.hit)
            if protected and rule.fields.method != "none" and step.hit.named and step.hit.pattern >= 0:
                pattern = rule.patterns[step.hit.pattern]
                last = pattern.text.rpartition(".")[2]
                if rule.kinds is None and (pattern.is_regex or any(c in last for c in "*?[")):
                    add_members(record.named_by_wildcard, unit, ranges)


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
    tree, suffixes = context.tensors
    reached = next(iter(tree.reach(pattern)), None)
    return None if reached is None else f".{suffixes[reached]}"


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


# --- a rule that reaches something, in vain --------------------------------------------------------------------------


def _took_nothing(context: Context, rule: Rule, record: _Record) -> None:
    own = rule.origin != "preset"
    place = (str(rule.location),)
    if record.applied:
        for said, reasons in record.ignored.items():
            if said not in record.took and own:
                context.add(
                    "PQ103" if said == "method" else "PQ104",
                    "error",
                    f"{_at(rule)}: its {said} applies to nothing that it reaches: {'; '.join(sorted(reasons))}",
                    context.spans(record.reached),
                    place,
                )
        if not record.remains and own:
            rules = (*place, *(str(context.policy.rules[n].location) for n in record.beaten_by))
            winners = ", ".join(rules[1:]) or "tied layers are decided together"
            everywhere = "wherever protection does not stop it" if record.stopped else "everywhere"
            context.add(
                "PQ201",
                "warning",
                f"{_at(rule)} decides nothing: it is overruled {everywhere} ({winners})",
                context.spans(record.reached),
                rules,
            )
        return
    if record.stopped and rule.fields.method is not None:
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
    why = "; ".join(sorted(record.reasons))
    level: Level = "error" if own else "note"
    if rule.fields.method is None:
        code = "PQ104" if level == "error" else "PQ302"
        message = f"{_at(rule)} has nothing to refine or set: {why}"
    else:
        code = "PQ103" if level == "error" else "PQ302"
        takes = ", ".join(sorted(METHODS[rule.fields.method].kinds))
        message = f"{_at(rule)} takes nothing of what it reaches: {why} ({rule.fields.method} takes {takes})"
    context.add(code, level, message, context.spans(record.reached), place)


def _names(context: Context, layers: Reach) -> str:
    return ", ".join(context.spans(layers)[:3])


def _naming(context: Context, layers: Reach) -> str:
    kinds = sorted({context.units[number].layer.kind for number in layers})
    last = sorted({"*." + span.rpartition(".")[2] for span in context.spans(layers)})
    return f"{', '.join(repr(text) for text in last[:3])}, or `kind: {kinds[0]}`"
