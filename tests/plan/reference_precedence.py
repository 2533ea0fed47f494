"""Precedence and protection by the letter, one layer and one rule at a time: what resolution must agree with.

Knows methods only (no refinements, outputs, ties or parts), on models where each layer is its own only part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from policyquant import Inventory
from policyquant.inventory.layers import NAMESPACES, LayerSet, NameForm
from policyquant.policy.patterns import Pattern

TAKES = {"linear", "moe", "head"}


class _Names:
    """All names of all layers of a model in one namespace."""

    def __init__(self, model: Inventory, namespace: str) -> None:
        self.of: dict[str, list[str]] = {}
        """Checkpoint name → names."""
        self.sizes: dict[str, int] = {}
        for layer in model.sets:
            for indices in layer.indices:
                names = [form.fill(indices) for form in _forms(layer, namespace)]
                self.of[layer.name(indices)] = names
                for name in names:
                    parts = name.split(".")
                    for at, part in enumerate(parts):
                        if part.isdecimal():
                            container = ".".join(parts[:at])
                            self.sizes[container] = max(self.sizes.get(container, 0), int(part) + 1)

    def reached(self, pattern: Pattern) -> set[str]:
        return {layer for layer, names in self.of.items() if any(self._reaches(pattern, name) for name in names)}

    def _reaches(self, pattern: Pattern, name: str) -> bool:
        if pattern.is_regex:
            return pattern.matches(name)
        parts = name.split(".")
        return any(pattern.matches(".".join(parts[: end + 1]), self.sizes) for end in range(len(parts)))

    def named(self, pattern: Pattern, layer: str) -> bool:
        def other(name: str) -> str:
            parent, dot, _ = name.rpartition(".")
            return f"{parent}{dot}\uffff"

        return any(
            pattern.matches(name, self.sizes) and not pattern.matches(other(name), self.sizes)
            for name in self.of[layer]
        )


def _forms(layer: LayerSet, namespace: str) -> Sequence[NameForm]:
    (part,) = layer.parts
    return part.names.get(namespace, ())  # type: ignore[call-overload, no-any-return]


def expected_methods(
    model: Inventory, rules: Sequence[Mapping[str, Any]], *, default: str | None, protect: Sequence[str] | None
) -> dict[str, str]:
    """Method of each layer by checkpoint name."""
    names = {namespace: _Names(model, namespace) for namespace in NAMESPACES}
    kinds = {layer.name(indices): layer.kind for layer in model.sets for indices in layer.indices}
    protected = {"head", "embedding", "router"} if protect is None else set(protect)

    def allowed(layer: str, method: str, named: bool) -> bool:
        kind = kinds[layer]
        if method == "none":
            return True
        takes = TAKES | ({"router"} if named else set())
        if method in ("fp8_weight_only", "dequantize"):
            takes = takes | {"embedding"}
        if kind not in takes:
            return False
        return method == "dequantize" or named or kind not in protected

    methods = dict.fromkeys(kinds, "none")
    if default is not None:
        methods.update((layer, default) for layer in kinds if allowed(layer, default, False))
    for rule in rules:
        pattern = Pattern.compile(rule["match"])
        kind = rule.get("kind")
        wanted = [kind] if isinstance(kind, str) else kind
        for namespace in NAMESPACES:
            reached = names[namespace].reached(pattern)
            if reached:
                for layer in reached:
                    named = kind is not None or names[namespace].named(pattern, layer)
                    if (wanted is None or kinds[layer] in wanted) and allowed(layer, rule["method"], named):
                        methods[layer] = rule["method"]
                break
    return methods
