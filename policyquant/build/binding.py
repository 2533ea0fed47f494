"""Modules meet the source and the plan: what each module is loaded from, and the scheme that it gets.

Everything that does not fit is collected, so that one error tells all of it before a byte is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import nn

from policyquant.build.stored_names import StoredNames, StoredPart
from policyquant.build.targets import PartName, Target, targets
from policyquant.checkpoint.tensors import LazyTensor, Slot
from policyquant.errors import PolicyQuantError, did_you_mean
from policyquant.inventory.architectures.describe import NO_LAYERS
from policyquant.layers.activation import GeluAndMul, SiluAndMul
from policyquant.layers.attention import Attention
from policyquant.layers.base import PolicyLayer, WeightLayer
from policyquant.plan.plan import Plan
from policyquant.plan.rows import LayerPlan
from policyquant.policy.scheme import NONE, Scheme

ADOPTED: Final = (nn.Linear, nn.Embedding)
"""Classes of torch's own that take a method; of others, what they compute is not known."""


@dataclass
class Binding:
    """One module, what it is loaded from, and its scheme."""

    module: nn.Module
    name: str
    scheme: Scheme = NONE
    slots: dict[Slot, LazyTensor] = field(default_factory=dict)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    """Own parameters and persistent buffers of the module."""
    complete: bool = True
    """Whether something is stored for each of its parts."""

    @property
    def owns_weight(self) -> bool:
        """Whether a method is to store its weight; a tied layer leaves that to the one that it is tied to."""
        adopted = type(self.module) in ADOPTED and self.scheme != NONE
        return (adopted or isinstance(self.module, WeightLayer)) and "weight" in self.tensors


def stored_parts(names: StoredNames, module: nn.Module, parts: Iterable[PartName]) -> list[tuple[PartName, StoredPart]]:
    """The parts of a module for which something is stored, or decided, each with what that is."""
    return [(part, stored) for part in parts if (stored := _find(names, module, part)) is not None]


def _find(names: StoredNames, module: nn.Module, part: PartName) -> StoredPart | None:
    stored = names.find(part.name)
    if stored is not None:
        return stored
    # Layers without tensors are named by their module's author: an attention's cache stands inside what a plan calls
    # the attention, and an activation beside what feeds it.
    parent = part.name.rpartition(".")[0]
    if isinstance(module, Attention):
        stored = names.find(parent)
        return stored if stored is not None and stored.layer.kind == "attention" else None
    if isinstance(module, (SiluAndMul, GeluAndMul)):
        return names.activation_in(parent)
    return None


class Binder:
    """Binds every module of a tree."""

    def __init__(self, names: StoredNames, plan: Plan | None, tensors: Mapping[str, LazyTensor]) -> None:
        """Without a plan, layers keep the schemes that they have."""
        self.problems: list[str] = []
        self._names = names
        self._plan = plan
        self._tensors = tensors
        self._used: set[str] = set()
        self._bound: set[str] = set()

    def bind(self, root: nn.Module) -> list[Binding]:
        """One binding a module. What does not fit is in `problems` afterwards."""
        bindings = [self._bind(target) for target in targets(root)]
        self._check_schemes()
        self._check_tensors(root)
        return bindings

    def _bind(self, target: Target) -> Binding:
        binding = Binding(target.module, target.name, tensors=target.tensors)
        found = stored_parts(self._names, target.module, target.parts)
        binding.scheme = self._scheme(target, found)
        for part, stored in found:
            self._take(binding, part, stored)
        if binding.owns_weight:
            # Of what a method needs, the method says what is missing; a part without anything is told with its nearest.
            here = {part for part, _ in found}
            missing = [part.name for part in target.parts if part not in here]
            binding.complete = not missing
            self.problems += [self._missing(f"{name}.weight", name) for name in missing]
        else:
            for key in target.tensors:
                if Slot(key) not in binding.slots:
                    full = f"{target.name}.{key}" if target.name else key
                    self.problems.append(self._missing(full, target.name))
        return binding

    def _scheme(self, target: Target, found: Iterable[tuple[PartName, StoredPart]]) -> Scheme:
        if self._plan is None:
            return target.module.scheme if isinstance(target.module, PolicyLayer) else NONE
        plans: dict[str, LayerPlan] = {}
        for _, stored in found:
            if stored.name not in plans and stored.name in self._plan:
                plans[stored.name] = self._plan[stored.name]
        self._bound.update(plans)
        first = next(iter(plans.values()), None)
        if first is None:
            return NONE
        for other in plans.values():
            if other.scheme != first.scheme:
                self.problems.append(
                    f"{target.name!r} holds {first.name!r} and {other.name!r}, which the plan decides apart:"
                    f" {first.scheme}{_by(first)}, but {other.scheme}{_by(other)}"
                )
                return NONE
        scheme = first.scheme
        if isinstance(target.module, PolicyLayer) or type(target.module) in ADOPTED:
            if first.stored is not None and scheme.method == "none" and target.tensors:
                self.problems.append(
                    f"{target.name!r} is stored as {first.stored} and the plan leaves it so, which this version cannot"
                    f" run; give it a method, such as fp8"
                )
            return scheme
        if scheme != NONE:
            self.problems.append(
                f"{target.name!r} gets {scheme}{_by(first)}, but its class {type(target.module).__name__} takes no"
                " method; use a layer of policyquant.layers, nn.Linear or nn.Embedding"
            )
        return NONE

    def _take(self, binding: Binding, part: PartName, stored: StoredPart) -> None:
        try:
            rows = stored.rows
        except PolicyQuantError as error:
            self.problems.append(str(error))
            return
        for suffix, name in stored.tensor_names():
            tensor = self._tensors.get(name)
            if tensor is None or suffix in NO_LAYERS:
                continue
            self._used.add(name)
            if suffix not in binding.tensors and suffix in binding.module._parameters:
                continue  # Another module has this parameter under an earlier name, and is loaded with it.
            if rows is not None and tensor.shape and tensor.shape[0] >= rows[1]:
                tensor = tensor.rows(*rows)
            binding.slots[Slot(suffix, part.part, part.expert)] = tensor

    def _missing(self, full: str, layer: str) -> str:
        return f"{full!r} is in the model, but the source has no such tensor{did_you_mean(layer, self._names.known())}"

    def _check_schemes(self) -> None:
        for row in () if self._plan is None else self._plan.rows:
            if row.scheme == NONE:
                continue
            lost = [name for name in row.names() if name not in self._bound]
            if lost:
                self.problems.append(
                    f"the plan gives {row.scheme} to {lost[0]!r}"
                    f"{f' and {len(lost) - 1:,} like it' if len(lost) > 1 else ''},"
                    " which is no layer of the model that was built"
                )

    def _check_tensors(self, root: nn.Module) -> None:
        """Surplus tensors: nothing in the model takes them."""
        modules = [name for name, _ in root.named_modules() if name]
        shared = {name for name, _ in root.named_parameters(remove_duplicate=False)}
        for name, tensor in self._tensors.items():
            layer, _, suffix = name.rpartition(".")
            known = self._names.renamed.get(layer, layer)
            if name in self._used or suffix in NO_LAYERS or f"{known}.{suffix}" in shared:
                continue
            self.problems.append(
                f"{tensor.place} is in the source, but nothing in the model takes it{did_you_mean(known, modules)}"
            )


def _by(layer: LayerPlan) -> str:
    return "" if layer.rule is None else f" by {layer.rule.pattern!r} ({layer.rule.place})"
