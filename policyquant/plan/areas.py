"""The areas of a model that one would write a rule for: attention, feed-forward layers, routed experts, a tower."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from policyquant.inventory.inventory import Inventory
from policyquant.inventory.layers import INDEX, Indices, LayerSet, own_name
from policyquant.inventory.spans import escape, spans
from policyquant.plan.matching import Matcher
from policyquant.plan.units import Unit, units_of
from policyquant.policy.patterns import Pattern

_TITLES: Final = {
    "attention": "Attention projections",
    "cross_attention": "Cross-attention projections",
    "mlp": "Feed-forward layers",
    "moe.experts": "Routed experts",
    "moe.shared_experts": "Shared experts",
    "mixer": "State-space and linear-attention mixers",
    "mtp": "Multi-token-prediction layers",
    "vision": "The vision tower",
    "audio": "The audio tower",
    "projector": "The projector between the towers",
}

_WHOLE: Final = ("mtp", "vision", "audio")
"""First parts of canonical names that are one area, whatever they hold."""

_MOST_AREAS: Final = 40
"""A model with more has no names that repeat; one rule for everything says more than hundreds."""


@dataclass(frozen=True, slots=True)
class Area:
    """Layers that one rule is written for."""

    key: str
    """Canonical template of the module they are in; the checkpoint's if they have no canonical name."""
    pattern: str
    """Reaches these layers and no other that a method takes."""
    layers: tuple[LayerSet, ...]

    @property
    def title(self) -> str:
        """What they are, for a comment."""
        tower, _, rest = self.key.partition(f".{INDEX}.")
        title = _TITLES.get(rest or tower)
        if title is None:
            return "Other linear layers"
        return f"{title} of the {tower}" if tower not in ("decoder", self.key) else title

    @property
    def count(self) -> int:
        """How many layers."""
        return sum(len(layer.indices) for layer in self.layers)

    @property
    def parameters(self) -> int | None:
        """Of all these layers."""
        sizes = [(layer.parameters, len(layer.indices)) for layer in self.layers]
        return None if any(size is None for size, _ in sizes) else sum((size or 0) * count for size, count in sizes)

    @property
    def stored(self) -> str | None:
        """How they are stored, if some of them are stored quantized."""
        return next((layer.stored.description for layer in self.layers if layer.stored is not None), None)

    @property
    def repeats(self) -> bool:
        """Whether they are part of blocks that repeat, as most of a model is."""
        return INDEX in self.key.split(".")

    @property
    def modules(self) -> list[str]:
        """Checkpoint names of the modules that they are in, folded."""
        templates = [layer.name_template.split(".") for layer in self.layers]
        shared: list[str] = []
        for pieces in zip(*templates, strict=False):
            if len(set(pieces)) > 1:
                break
            shared.append(pieces[0])
        width = shared.count(INDEX)
        members = {indices[:width] for layer in self.layers for indices in _name_indices(layer)}
        return spans(own_name(".".join(shared)), sorted(members)) if shared else []


def _name_indices(layer: LayerSet) -> Iterable[Indices]:
    form = layer.names["checkpoint"][0]
    pairs = tuple(zip(form.positions, form.offsets, strict=True))
    return (tuple(indices[p] - o for p, o in pairs) for indices in layer.indices)


def areas(inventory: Inventory) -> list[Area]:
    """The areas of a model, in the order of the inventory; they hold every linear layer and every routed expert."""
    grouped: dict[str, list[LayerSet]] = {}
    for layer in inventory.sets:
        if layer.kind in ("linear", "moe"):
            grouped.setdefault(_key(layer), []).append(layer)
    if len(grouped) > _MOST_AREAS:
        return [Area("", "*", tuple(layer for layers in grouped.values() for layer in layers))]
    units = units_of(inventory.sets)
    matcher = Matcher(units)
    return [
        Area(key, _exact(_patterns(key, layers), frozenset(layers), units, matcher), tuple(layers))
        for key, layers in grouped.items()
    ]


def canonical(layer: LayerSet) -> str | None:
    """Canonical template of a layer's own name, if it has one."""
    return next((form.template for form in layer.names.get("canonical", ()) if form.own), None)


def _key(layer: LayerSet) -> str:
    template = canonical(layer)
    if template is None:
        return layer.name_template.rpartition(".")[0] or layer.name_template
    pieces = template.split(".")
    if pieces[0] in _WHOLE or INDEX not in pieces:
        return pieces[0]
    after = pieces.index(INDEX) + 1
    return ".".join(pieces[: after + (2 if pieces[after : after + 1] == ["moe"] else 1)])


def _patterns(key: str, layers: Sequence[LayerSet]) -> tuple[str, str]:
    """Patterns for an area: the module, and all layers by their own names."""
    names = list(dict.fromkeys(as_pattern(layer.name_template) for layer in layers))
    return as_pattern(key), names[0] if len(names) == 1 else "{" + ",".join(names) + "}"


def as_pattern(template: str) -> str:
    """A pattern for all names of a template."""
    return ".".join("*" if part == INDEX else escape(part) for part in template.split("."))


def _exact(patterns: Sequence[str], layers: frozenset[LayerSet], units: Sequence[Unit], matcher: Matcher) -> str:
    """The first pattern that reaches exactly these layers, of those that a broad rule can quantize; else the last."""
    wanted = {unit.number for unit in units if unit.layer in layers}
    for text in patterns:
        match = matcher.match(Pattern.compile(text))
        reached = {number for number in match.reach if units[number].layer.kind in ("linear", "moe")}
        whole = all(match.reach[number] == units[number].all for number in reached)
        if reached == wanted and whole and not match.elsewhere:
            break
    return text
