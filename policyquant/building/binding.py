"""Modules meet the source and the plan: what each module is loaded from, and the scheme that it gets.

Everything that does not fit is collected, so that one error tells all of it before a byte is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import nn

from policyquant.building.arrangement import Arrangement, concerns
from policyquant.building.as_stored import runnable_as_stored
from policyquant.building.layer_names import all_names
from policyquant.building.nearest_names import NearestNames
from policyquant.building.shares import Share, shares
from policyquant.building.stored_names import StoredNames
from policyquant.building.stored_tensors import expert_tensor, part_of
from policyquant.building.targets import PartName, Target, targets
from policyquant.checkpoint.derived_tensor import StackedTensor
from policyquant.checkpoint.tensors import LazyTensor, Slot
from policyquant.errors import PolicyQuantError
from policyquant.inventory.architectures.describe import NO_LAYERS
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
    """Whether something is stored for each of its parts, and nothing is wrong with it so far."""
    parts: dict[str, int] | None = None
    """Rows of its parts as the source stores them, if the model has them as one."""
    foreign: str = ""
    """How it is stored, if that is quantized in a form that its method may not load."""
    output_scales: list[LazyTensor] = field(default_factory=list)
    """Stored scales of which a static output takes the largest."""

    @property
    def owns_weight(self) -> bool:
        """Whether a method is to store its weight; a tied layer leaves that to the one that it is tied to."""
        adopted = type(self.module) in ADOPTED and self.scheme != NONE
        return (adopted or isinstance(self.module, WeightLayer)) and "weight" in self.tensors

    @property
    def beside(self) -> dict[str, torch.Tensor]:
        """Tensors that a layer has of its own beside those of its method."""
        taken = getattr(self.module, "method_tensors", WeightLayer.method_tensors)
        return {key: tensor for key, tensor in self.tensors.items() if key not in taken} if self.owns_weight else {}

    @property
    def plain_tensors(self) -> dict[str, torch.Tensor]:
        """Those of `tensors` that are loaded as they are stored; the others are a method's."""
        return self.beside if self.owns_weight else self.tensors

    @property
    def method_slots(self) -> dict[Slot, LazyTensor]:
        """Those of `slots` that the method of a layer is handed."""
        beside = self.beside
        return {slot: tensor for slot, tensor in self.slots.items() if slot.suffix not in beside}


class Binder:
    """Binds every module of a tree."""

    def __init__(
        self, names: StoredNames, plan: Plan | None, tensors: Mapping[str, LazyTensor], model_type: str = ""
    ) -> None:
        """
        Args:
            names: What the source stores.
            plan: None: layers keep the schemes that they have.
            tensors: Of the source, by name.
            model_type: Of the configuration, or the name of the family that names told; empty if unknown.
        """
        self.problems: list[str] = []
        self._names = names
        self._plan = plan
        self._tensors = tensors
        self._model_type = model_type
        self._stored = NearestNames(names.known())
        self._used: set[str] = set()
        self._bound: set[str] = set()

    def bind(self, root: nn.Module) -> list[Binding]:
        """One binding a module. What does not fit is in `problems` afterwards."""
        names = all_names(root)
        asked = [(target, self._shares(target, names.get(target.module, ()))) for target in targets(root)]
        self._arrangement = Arrangement(asked, self._tensors, self._model_type)
        bindings = [self._bind(target, found) for target, found in asked]
        for target, found in asked:
            for name in names.get(target.module, ())[1:]:
                self._check_other_name(target, found, name)
        self.problems += self._names.collisions
        self.problems += self._arrangement.unclaimed()
        self._check_schemes()
        self._check_tensors(root)
        return bindings

    def _shares(self, target: Target, names: Iterable[str]) -> list[Share]:
        """What is stored for a module, under its first name or else under another."""
        for name in names:
            found = shares(self._names, target.under(name))
            if found:
                return found
        return []

    def _bind(self, target: Target, found: list[Share]) -> Binding:
        binding = Binding(target.module, target.name, tensors=target.tensors)
        before = len(self.problems)
        binding.scheme = self._scheme(target, found)
        found = self._decided_apart(binding, found)
        binding.foreign = _foreign(found, binding.scheme)
        as_one = any(share.parameter for share in found)
        if as_one and not binding.owns_weight:
            self._put_together(binding, found)
        else:
            for share in found:
                self._take(binding, share)
            if as_one:
                self._take_parts(binding, found)
        self._take_beside(binding)
        if len(self.problems) > before:
            binding.complete = False  # What its method would add says the same again.
            return binding
        if binding.owns_weight:
            # Of what a method needs, the method says what is missing; a part without anything is told with its nearest.
            here = {(share.part.part, share.part.expert) for share in found}
            missing = [part.name for part in target.parts if not as_one and (part.part, part.expert) not in here]
            binding.complete = not missing
            self.problems += [self._missing(f"{name}.weight", name) for name in missing]
        for key in binding.plain_tensors:
            if Slot(key) not in binding.slots:
                full = f"{target.name}.{key}" if target.name else key
                self.problems.append(self._missing(full, target.name))
        return binding

    def _scheme(self, target: Target, found: Iterable[Share]) -> Scheme:
        if self._plan is None:
            return target.module.scheme if isinstance(target.module, PolicyLayer) else NONE
        plans: dict[str, LayerPlan] = {}
        for share in found:
            name = share.stored.name
            if name not in plans and (plan := self._plan.get(name)) is not None:
                plans[name] = plan
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
            if scheme.method == "none" and target.tensors and any(plan.stored for plan in plans.values()):
                return self._as_stored(
                    target, found, scheme, [plan.stored or "plain floats" for plan in plans.values()]
                )
            return scheme
        if scheme != NONE:
            self.problems.append(
                f"{target.name!r} gets {scheme}{_by(first)}, but its class {type(target.module).__name__} takes no"
                " method; use a layer of policyquant.layers, nn.Linear or nn.Embedding, or give it the method 'none'"
            )
        return NONE

    def _as_stored(self, target: Target, found: Iterable[Share], scheme: Scheme, stored: list[str]) -> Scheme:
        """The scheme under which a layer runs that is stored quantized and that the plan leaves so."""
        runs = runnable_as_stored([share.stored.layer for share in found], scheme)
        if runs is None:
            self.problems.append(
                f"{target.name!r} is stored as {' beside '.join(dict.fromkeys(stored))} and the plan leaves it so,"
                " which this version cannot run; of what is stored quantized it runs FP8 with a scale for each channel"
                " or tensor"
            )
        return scheme if runs is None else runs

    def _decided_apart(self, binding: Binding, found: list[Share]) -> list[Share]:
        """The parts of a plain layer that is stored fused too: a plan decides, and counts scales, for each part."""
        stored = found[0].stored if len(found) == 1 else None
        if stored is None or stored.part is not None or not binding.owns_weight or stored.layer.kind == "moe":
            return found
        plan = None if self._plan is None else self._plan.get(stored.name)
        left = plan is not None and plan.method == "none"
        shapes = [part.shape for part in stored.layer.parts]
        own = binding.tensors["weight"].shape[0]
        if left or not self._arrangement.divisible(stored) or sum(shape[0] for shape in shapes if shape) != own:
            return found
        parts = (stored._replace(part=part) for part in stored.layer.parts)
        return [Share(PartName(binding.name, part.projection), part, parameter="weight") for part in parts]

    def _pieces(self, binding: Binding, share: Share) -> Iterator[tuple[str, LazyTensor]]:
        """What a share is of each tensor of its stored layer, with what that is for it: `weight`, `bias`, …"""
        module, beside = binding.module, binding.beside
        whole_module = share.stored.whole and not isinstance(module, (nn.Linear, WeightLayer)) and not share.parameter
        for suffix, name in share.stored.tensor_names(self._tensors):
            what = None if whole_module else expert_tensor(share.stored.layer, suffix)
            if suffix in NO_LAYERS or not concerns(what, share):
                continue
            self._used.add(name)
            word = suffix if what is None else what.word
            tensor = self._tensors[name]
            if not whole_module and word not in beside:
                try:
                    tensor = part_of(tensor, word, self._arrangement.place(module, share, what))
                except PolicyQuantError as error:
                    self.problems.append(str(error))
                    continue
            yield word, tensor

    def _take(self, binding: Binding, share: Share) -> None:
        for word, tensor in self._pieces(binding, share):
            if word not in binding.tensors and binding.module._parameters.get(word) is not None:
                continue  # Another module has this parameter under an earlier name, and is loaded with it.
            part = share.part.part
            binding.slots[Slot(word, part, share.part.expert)] = tensor

    def _take_beside(self, binding: Binding) -> None:
        """A merged layer's own tensors, which are stored under its name and not under that of a part."""
        lacking = [key for key in binding.beside if Slot(key) not in binding.slots]
        stored = self._names.find(binding.name) if lacking else None
        for suffix, name in () if stored is None else stored.tensor_names(self._tensors):
            if suffix in lacking:
                self._used.add(name)
                binding.slots[Slot(suffix)] = self._tensors[name]

    def _take_parts(self, binding: Binding, found: Iterable[Share]) -> None:
        """Let a layer of one part be one of several, as the source stores them."""
        weights = {share.part.part: binding.slots.get(Slot("weight", share.part.part)) for share in found}
        rows = {part: tensor.shape[0] for part, tensor in weights.items() if tensor is not None and tensor.shape}
        own = binding.tensors["weight"].shape[0]
        if sum(rows.values()) != own:
            stored = " + ".join(f"{part} {count:,}" for part, count in rows.items())
            self.problems.append(f"{binding.name!r} has {own:,} rows in the model, and the source stores {stored}")
        binding.parts = rows

    def _put_together(self, binding: Binding, found: Iterable[Share]) -> None:
        """Make each parameter of a module of what is stored one by one: rows under rows, expert after expert."""
        pieces: dict[str, dict[int | None, list[LazyTensor]]] = {}
        for share in found:
            one_by_one = share.parameter not in ("weight", "bias")
            stored = share.stored
            expert = (stored.indices[-1] if stored.expert is None else stored.expert) if one_by_one else None
            for word, tensor in self._pieces(binding, share):
                key = word if not one_by_one else share.parameter if word == "weight" else f"{share.parameter}_{word}"
                pieces.setdefault(key, {}).setdefault(expert, []).append(tensor)
        for key, by_expert in pieces.items():
            if key not in binding.tensors and binding.module._parameters.get(key) is not None:
                continue
            problem = _cannot_be_one(binding, key, by_expert)
            if problem is not None:
                self.problems.append(problem)
                continue
            entries = [StackedTensor(tensors) if len(tensors) > 1 else tensors[0] for tensors in by_expert.values()]
            one = entries[0] if None in by_expert else StackedTensor(entries, entries=True)
            if None not in by_expert and getattr(binding.module, "is_transposed", False) and len(one.shape) > 2:
                one = one.transposed()
            binding.slots[Slot(key)] = one

    def _check_other_name(self, target: Target, found: Iterable[Share], name: str) -> None:
        """A module is decided once, under its first name: what decides about another must say the same."""
        others = shares(self._names, target.under(name))
        for share in others:
            self._used.update(full for _, full in share.stored.tensor_names(self._tensors))
        if self._plan is None:
            return
        first = dict.fromkeys(share.stored.name for share in found)
        for other in dict.fromkeys(share.stored.name for share in others if share.stored.name not in first):
            two = self._plan.get(other)
            if two is None:
                continue
            self._bound.add(other)
            for one in filter(None, map(self._plan.get, first)):
                if two.decided_by != "nothing" and one.scheme != two.scheme:
                    self.problems.append(
                        f"{one.name!r} and {two.name!r} are one module under two names, which the plan decides apart:"
                        f" {one.scheme}{_by(one)}, but {two.scheme}{_by(two)}"
                    )

    def _missing(self, full: str, layer: str) -> str:
        return f"{full!r} is in the model, but the source has no such tensor{self._stored.hint(layer)}"

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
        modules = NearestNames(name for name, _ in root.named_modules() if name)
        once = {name for name, _ in root.named_parameters()}
        again = {name for name, _ in root.named_parameters(remove_duplicate=False)} - once
        for name, tensor in self._tensors.items():
            layer, _, suffix = name.rpartition(".")
            known = self._names.renamed.get(layer, layer)
            if name in self._used or suffix in NO_LAYERS or f"{known}.{suffix}" in again:
                continue
            self.problems.append(
                f"{tensor.place} is in the source, but nothing in the model takes it{modules.hint(known)}"
            )


def _by(layer: LayerPlan) -> str:
    return "" if layer.rule is None else f" by {layer.rule.pattern!r} ({layer.rule.place})"


def _foreign(found: Iterable[Share], scheme: Scheme) -> str:
    """How a layer is stored, if that is quantized in a form that its method may not load."""
    for share in found:
        layer = share.stored.layer
        if layer.stored is not None and (scheme.method != "fp8" or runnable_as_stored([layer], NONE) is None):
            return layer.stored.description
    return ""


def _cannot_be_one(binding: Binding, key: str, by_expert: Mapping[int | None, list[LazyTensor]]) -> str | None:
    """Why what is stored one by one is no parameter of a module; None if it is."""
    full = f"{binding.name}.{key}"
    experts = [expert for expert in by_expert if expert is not None]
    first = next(iter(by_expert.values()))
    if experts and experts != list(range(len(experts))):
        lacking, after = next((number, expert) for number, expert in enumerate(experts) if number != expert)
        place = by_expert[after][0].place
        return f"{full!r} is stored expert by expert, and expert {lacking} is missing: the next is {place}"
    if experts and getattr(binding.module, "is_concatenated", True) is False:
        return (
            f"{full!r} holds gate and up in alternate rows, and the source stores them one by one, from"
            f" {first[0].place}: they cannot be put together here"
        )
    for tensors in by_expert.values():
        shapes = [tensor.shape for tensor in tensors]
        if len(shapes) != len(first) or [shape[1:] for shape in shapes] != [tensor.shape[1:] for tensor in first]:
            return f"{full!r} is stored in pieces of different shapes: {tensors[0].place} {list(shapes[0])}"
        if any(not shape for shape in shapes) or {tensor.dtype for tensor in tensors} != {first[0].dtype}:
            return f"{full!r} is stored in pieces that are not alike: {tensors[0].place} is {tensors[0].dtype}"
        if experts and sum(shape[0] for shape in shapes) != sum(tensor.shape[0] for tensor in first):
            return f"{full!r} is stored in pieces of different shapes: {tensors[0].place} {list(shapes[0])}"
    return None
