"""What the steps of a resolution share: the policy, the units, their decisions, and where findings go."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from policyquant.findings import Finding, Level
from policyquant.inventory.layers import LayerSet, NameForm, Namespace, Part
from policyquant.inventory.ranges import Ranges
from policyquant.plan.assignment import Assignment
from policyquant.plan.decide import Decision, Facts
from policyquant.plan.history import Hit
from policyquant.plan.matching import Match, Matcher
from policyquant.plan.names import NameTree
from policyquant.plan.spans import unit_spans
from policyquant.plan.units import Reach, Unit, units_of
from policyquant.policy.policy import Policy, Rule


@dataclass(eq=False)
class Context:
    """One resolution under way."""

    policy: Policy
    units: list[Unit]
    matcher: Matcher
    model_dtype: str
    """PyTorch name of the dtype of what is not quantized."""
    findings: list[Finding] = field(default_factory=list)
    matches: list[list[Match]] = field(default_factory=list)
    """For each rule, what each of its patterns reaches."""
    suggestions: int = 0
    """How many spellings were looked for so far."""

    assignment: Assignment = field(init=False)

    def facts(self, unit: Unit) -> Facts:
        """What precedence needs to know of a unit."""
        kind, shape = unit.layer.kind, unit.shape
        return Facts(kind, kind in self.policy.protect, unit.layer.has_kv_cache, shape is None or len(shape) > 1)

    def add(self, code: str, level: Level, message: str, layers: Iterable[str] = (), rules: Iterable[str] = ()) -> None:
        """Record a finding."""
        self.findings.append(Finding(code, level, message, tuple(layers), tuple(dict.fromkeys(filter(None, rules)))))

    def rule(self, hit: Hit) -> Rule:
        """The rule of a hit."""
        return self.policy.rules[hit.rule]

    def text(self, hit: Hit) -> str:
        """What reached a layer, as it is written: the pattern that did, or the kinds of a rule by kind alone."""
        rule = self.rule(hit)
        return rule.patterns[hit.pattern].text if hit.pattern >= 0 else rule.text

    def places(self, decision: Decision) -> tuple[str, ...]:
        """Where what decided stands: `file:line:column` of the rule or the default, and of the rules that refined it;
        empty if nothing written did."""
        unwritten = decision.decided_by in ("nothing", "protection") or decision.tied_to_nothing
        own = () if unwritten else (self.written_at(decision.hit),)
        return (*own, *map(self.written_at, decision.refined_by))

    def written_at(self, hit: Hit | None) -> str:
        """`file:line:column` of a rule, or (None) of the default."""
        if hit is not None:
            return str(self.rule(hit).location)
        return str(self.policy.default.location) if self.policy.default is not None else ""

    def because(self, decision: Decision) -> str:
        """Why a layer is as it is, to end a sentence: the rule that decided with its place, and those that refined it;
        or why none did."""
        if decision.decided_by == "nothing":
            text = "since no rule decides it"
        elif decision.decided_by == "protection":
            text = "since it is protected and no rule that would quantize it names it"
        elif decision.tied_to_nothing:
            text = "since it shares its storage with a layer that is left as it is"
        else:
            text = f"by {self.who_wrote(decision.hit)}"
        if decision.refined_by:
            text += f" refined by {', '.join(map(self.who_wrote, decision.refined_by))}"
        return text

    def who_wrote(self, hit: Hit | None) -> str:
        """A rule, or (None) the default, for a sentence."""
        if hit is None:
            return f"the default ({self.written_at(hit)})"
        return f"{self.text(hit)!r} ({self.rule(hit).location})"

    def spans(self, reached: Reach | Iterable[tuple[Unit, Ranges]]) -> list[str]:
        """Layer names, folded, of members of several units."""
        pairs = (
            [(self.units[number], ranges) for number, ranges in reached.items()]
            if isinstance(reached, dict)
            else reached
        )
        return list(dict.fromkeys(span for unit, ranges in pairs for span in unit_spans(unit, ranges)))

    @cached_property
    def tensors(self) -> tuple[NameTree, list[str]]:
        """All full names of tensors, in any namespace, and the suffix of each of the tree's units."""
        sets: list[LayerSet] = []
        suffixes: list[str] = []
        for layer in self.units_of_layer:
            own = [form for forms in layer.names.values() for form in forms]
            for tensor in layer.tensors:
                forms = tuple(form._replace(template=f"{form.template}.{tensor.suffix}") for form in own)
                names: dict[Namespace, tuple[NameForm, ...]] = {"checkpoint": forms}
                sets.append(LayerSet(layer.kind, layer.indices, names, (Part("", names, None),)))
                suffixes.append(tensor.suffix)
        return NameTree(units_of(sets), "checkpoint"), suffixes

    @cached_property
    def by_canonical(self) -> dict[str, list[Unit]]:
        """Units by the template of each of their canonical names, fused ones included."""
        result: dict[str, list[Unit]] = {}
        for unit in self.units:
            for form in unit.part.names.get("canonical", ()):
                result.setdefault(form.template, []).append(unit)
        return result

    @cached_property
    def storages(self) -> dict[str, list[Unit]]:
        """By the name of each layer whose storage others share: its unit and theirs, its own first."""
        single = {u.layer.name_template: u for u in self.units if not u.layer.indices[0]}
        result: dict[str, list[Unit]] = {}
        for unit in self.units:
            owner = unit.layer.tied_to
            if owner is not None and owner in single:
                result.setdefault(owner, [single[owner]]).append(unit)
        return result

    @cached_property
    def sharing(self) -> frozenset[Unit]:
        """The units of all layers that share a storage with another."""
        return frozenset(unit for units in self.storages.values() for unit in units)

    @cached_property
    def units_of_layer(self) -> dict[LayerSet, list[Unit]]:
        """The units of each layer set."""
        result: dict[LayerSet, list[Unit]] = {}
        for unit in self.units:
            result.setdefault(unit.layer, []).append(unit)
        return result
