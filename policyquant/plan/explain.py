"""Why a layer is as it is: every rule in order, and what each did to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from policyquant.errors import PolicyQuantError
from policyquant.inventory.collapse import template_of
from policyquant.inventory.layers import NAMESPACES, Indices, LayerSet, NameForm, Namespace
from policyquant.plan.context import Context
from policyquant.plan.decide import Step
from policyquant.plan.rows import LayerPlan
from policyquant.plan.spans import unit_spans
from policyquant.plan.units import Unit

Outcome = Literal["decides", "sets", "overruled", "passes over", "stopped by protection", "does not reach"]


@dataclass(frozen=True, slots=True)
class RuleOutcome:
    """One rule (or the default) and what it did to the layer."""

    text: str
    """The pattern that reached the layer, or the rule's whole condition."""
    place: str
    """`file:line:column`."""
    says: str
    """Its scheme in one line, as it could be written."""
    outcome: Outcome
    reason: str
    """Why it passed over the layer or was stopped; else empty."""
    namespace: Namespace | None
    """To which the pattern belongs, if it reached the layer."""
    names: bool
    """Whether it names the layer rather than merely covers it."""


@dataclass(frozen=True, slots=True)
class PartExplanation:
    """What led to the decision about one part of a layer (a plain layer is its own only part)."""

    name: str
    """Its checkpoint name."""
    names: Mapping[Namespace, tuple[str, ...]]
    """All its names in each namespace, its own first, then fused ones."""
    rules: tuple[RuleOutcome, ...]
    """The default, if there is one, and every rule in order."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything there is to say about one layer."""

    layer: LayerPlan
    protected: bool
    """Whether its kind is protected: only rules that name it can quantize it."""
    parts: tuple[PartExplanation, ...]
    group: tuple[str, ...]
    """The other members of its fused group, folded."""
    tied_to: str | None
    """Checkpoint name of the layer whose storage it shares."""
    tied_by: tuple[str, ...]
    """Layers that share this one's storage."""
    feeds: tuple[str, ...] | None
    """Layers that read its output; None: not known."""
    fed_by: tuple[str, ...]
    """Layers whose output it reads."""


class Explainer:
    """Answers questions about a plan from the resolution it came from."""

    def __init__(self, context: Context) -> None:
        self._context = context

    @property
    def context(self) -> Context:
        """The resolution."""
        return self._context

    def checkpoint_name(self, name: str) -> str | None:
        """The checkpoint name of the layer that has `name` in any namespace; None if none or several do."""
        found = self._locate(name)
        if found is None:
            return None
        layer, indices = found
        return layer.name(indices)

    def _locate(self, name: str) -> tuple[LayerSet, Indices] | None:
        try:
            template, values = template_of(name)
        except PolicyQuantError:
            return None
        for namespace in NAMESPACES:
            hits: dict[tuple[int, Indices], tuple[LayerSet, Indices]] = {}
            for unit in self._context.units:
                for form in unit.part.names.get(namespace, ()):
                    if form.template == template:
                        for member in _members(unit, form, values):
                            indices = unit.layer.indices[unit.layer_position(member)]
                            hits[id(unit.layer), indices] = (unit.layer, indices)
                for form in unit.layer.names.get(namespace, ()):
                    if form.template == template:
                        raw = _stored_indices(form, values)
                        for indices in unit.layer.indices:
                            if tuple(indices[position] for position in form.positions) == raw:
                                hits[id(unit.layer), indices] = (unit.layer, indices)
            if len(hits) == 1:
                return next(iter(hits.values()))
        return None

    def explain(self, layer: LayerPlan) -> Explanation:
        """All about the layer that `plan[name]` gave."""
        context = self._context
        found = self._locate(layer.name)
        assert found is not None
        layer_set, indices = found
        units = context.units_of_layer[layer_set]
        position = layer_set.indices.index(indices)
        block = units[0].block_of(indices)
        return Explanation(
            layer,
            layer_set.kind in context.policy.protect,
            tuple(self._part(unit, member) for unit in units for member in self._differing(unit, position)),
            self._group(units, indices),
            layer_set.tied_to,
            tuple(
                other.names["checkpoint"][0].template
                for other in context.units_of_layer
                if other.tied_to is not None and other.tied_to == layer.name
            ),
            self._feeds(layer_set, block),
            self._fed_by(units, block),
        )

    def _differing(self, unit: Unit, position: int) -> list[int]:
        """Of the members of a unit that belong to one layer, the first with each decision."""
        members = (unit.members_of_layer(position),)
        first = {decision: start for start, _, decision in reversed([*self._context.assignment.within(unit, members)])}
        return sorted(first.values())

    def _part(self, unit: Unit, member: int) -> PartExplanation:
        names = {namespace: tuple(unit.names(namespace, member)) for namespace in NAMESPACES}
        return PartExplanation(unit.name(member), names, tuple(self._rules(unit, member)))

    def _rules(self, unit: Unit, member: int) -> Sequence[RuleOutcome]:
        context = self._context
        decision = context.assignment.at(unit, member)
        steps = {step.hit.rule: step for step in decision.steps if step.hit is not None}
        kept = {hit.rule for hit in (decision.hit, *decision.refined_by) if hit is not None}
        result = []
        default = context.policy.default
        if default is not None:
            step = next((s for s in decision.steps if s.hit is None), None)
            assert step is not None
            outcome = _outcome(step, decision.default_sets, decision.decided_by == "default")
            result.append(
                RuleOutcome(
                    "default", str(default.location), str(default.fields), outcome, step.reason, None, names=False
                )
            )
        for number, rule in enumerate(context.policy.rules):
            found = steps.get(number)
            if found is None:
                result.append(
                    RuleOutcome(
                        rule.text, str(rule.location), str(rule.fields), "does not reach", "", None, names=False
                    )
                )
                continue
            hit = found.hit
            assert hit is not None
            outcome = _outcome(found, number in kept, decision.hit is not None and decision.hit.rule == number)
            text = context.text(hit)
            result.append(
                RuleOutcome(text, str(rule.location), str(rule.fields), outcome, found.reason, hit.namespace, hit.named)
            )
        return result

    def _group(self, units: list[Unit], indices: Indices) -> tuple[str, ...]:
        context = self._context
        result: list[str] = []
        for unit in units:
            group = unit.part.group
            if group is None:
                continue
            key = tuple(indices[p] for p in group.positions)
            for other in context.units:
                if other.part.group is not None and other.part.group.label == group.label:
                    ranges = other.by_key(other.part.group.positions).get(key, ())
                    result.extend(unit_spans(other, ranges) if ranges else ())
        return tuple(dict.fromkeys(result))

    def _feeds(self, layer: LayerSet, block: Indices) -> tuple[str, ...] | None:
        if layer.feeds is None:
            return None
        return tuple(
            dict.fromkeys(
                span
                for template in layer.feeds
                for reader in self._context.by_canonical.get(template, ())
                if (ranges := reader.in_block(block))
                for span in unit_spans(reader, ranges)
            )
        )

    def _fed_by(self, units: list[Unit], block: Indices) -> tuple[str, ...]:
        mine = {form.template for unit in units for form in unit.part.names.get("canonical", ())}
        return tuple(
            dict.fromkeys(
                span
                for other in self._context.units
                if mine.intersection(other.layer.feeds or ()) and (ranges := other.in_block(block))
                for span in unit_spans(other, ranges)
            )
        )


def _outcome(step: Step, kept: bool, decides: bool) -> Outcome:
    if step.effect == "stopped":
        return "stopped by protection"
    if step.effect == "passes":
        return "passes over"
    if decides:
        return "decides"
    return "sets" if kept else "overruled"


def _members(unit: Unit, form: NameForm, values: Indices) -> list[int]:
    ranges = unit.by_key(form.positions).get(_stored_indices(form, values), ())
    return [member for start, stop in ranges for member in range(start, stop)]


def _stored_indices(form: NameForm, values: Indices) -> Indices:
    """The indices of the source that give a name its numbers."""
    return tuple(value + offset for value, offset in zip(values, form.offsets, strict=True))
