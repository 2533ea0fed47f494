"""Which stored layers a module is made of: the same parts may be stored and be held in the model in different forms.

| the model has | the source has | what happens |
|---|---|---|
| one layer | the same | it is loaded |
| a merged layer (`qkv_proj` of ours) | its parts | each part is loaded into its rows |
| a merged layer, or each part | a fused layer, 3-D experts | rows, and entries, of what is stored are taken |
| one plain module (`nn.Linear` `qkv_proj`) | its parts | they are put under one another |
| one 3-D parameter | experts one by one | they are put together |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from torch import nn

from policyquant.building.stored_names import StoredNames, StoredPart
from policyquant.building.targets import PartName, Target
from policyquant.layers.activation import GeluAndMul, SiluAndMul
from policyquant.layers.attention import Attention
from policyquant.layers.base import WeightLayer


class Share(NamedTuple):
    """One part of a module, and what is stored for it."""

    part: PartName
    stored: StoredPart
    beside: tuple[str, ...] | None = None
    """Parts of the module in the order in which `stored` holds them, if the module's author named them and not the
    source; None: as the source has them."""
    parameter: str = ""
    """The parameter of the module that this is a piece of, where several make one."""


def stored_parts(names: StoredNames, module: nn.Module, parts: Iterable[PartName]) -> list[tuple[PartName, StoredPart]]:
    """The parts of a module for which something is stored, or decided, each with what that is."""
    return [(part, stored) for part in parts if (stored := _find(names, module, part)) is not None]


def shares(names: StoredNames, target: Target) -> list[Share]:
    """All that is stored for a module. Parts for which there is nothing are left out."""
    found = [Share(part, stored) for part, stored in stored_parts(names, target.module, target.parts)]
    if found:
        return found
    module = target.module
    if isinstance(module, WeightLayer) and (len(module.parts) > 1 or module.num_experts is not None):
        return list(_by_own_name(names, target, module))
    if target.tensors and (members := names.members(target.name)):
        return [Share(PartName(target.name, each.projection), each, parameter="weight") for each in members]
    return [
        Share(PartName(target.name), each, parameter=key)
        for key in target.tensors
        for each in names.members(f"{target.name}.{key}")
    ]


def _by_own_name(names: StoredNames, target: Target, module: WeightLayer) -> Iterator[Share]:
    """A merged layer whose parts the source does not know by these names, but whose own it does."""
    order = tuple(module.parts)
    stored = names.find(target.name) or _projection_inside(names, target.name)
    if stored is not None:
        yield from (Share(part, stored, order) for part in target.parts)
        return
    members = names.members(target.name)
    # Parts of one expert after another on both sides.
    if len(members) == len(target.parts):
        yield from (Share(part, each) for part, each in zip(target.parts, members, strict=True))


def _projection_inside(names: StoredNames, name: str) -> StoredPart | None:
    """A projection of all experts that the source spells otherwise (`experts.w13_weight`)."""
    parent, _, projection = name.rpartition(".")
    experts = names.find(parent)
    if experts is None or experts.part is not None:
        return None
    parts = (part for part in experts.layer.parts if part.role.rpartition(".")[2] == projection and not part.repeats)
    part = next(parts, None)
    return None if part is None else experts._replace(part=part)


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
