"""Layers that share one tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from policyquant.findings import Finding
from policyquant.inventory.architectures import architectures
from policyquant.inventory.architectures.family import Entry, Family, Tie
from policyquant.inventory.architectures.naming import Namer
from policyquant.inventory.architectures.vocabulary import place
from policyquant.inventory.collapse import template_of
from policyquant.inventory.config_file import levels
from policyquant.inventory.layers import LayerSet, Namespace, Part, StoredModel

WITH_VOCABULARY_OUTPUT: Final = (
    "CausalLM",
    "LMHead",
    "ConditionalGeneration",
    "PreTraining",
    "MaskedLM",
    "Vision2Seq",
    "ImageTextToText",
)
"""What the class name of a model holds that has a head for its vocabulary."""


def with_ties(
    sets: Sequence[LayerSet],
    entries: Sequence[Entry],
    families: Sequence[Family],
    model: StoredModel,
) -> tuple[list[LayerSet], list[Finding]]:
    """Add tied layers that own no tensor, and mark those that are listed although they share one.

    A module tree tells itself what it shares. For any other source the configuration does, else the family's default;
    and the model that is loaded from it, if that is known.

    Args:
        sets: The layers so far.
        entries: The entry of each of them.
        families: Data that applies.
        model: The source.
    """
    result = list(sets)
    entries = list(entries)
    findings: list[Finding] = []
    if model.naming == "module" and model.module_types:
        return _as_tree_says(result, model.shared, "module"), findings
    said = _tie_word_embeddings(model.config)
    for family in families:
        for tie in family.ties:
            if tie.default is None:
                want = True
            else:
                want = tie.default if said is None else said
            tied = _position(tie.tied, family, entries)
            storage = _position(tie.storage, family, entries)
            if tied is not None and storage is not None:
                if want and (model.naming == "module" or not _has_weight(result[tied])):
                    result[tied] = _sharing(result[tied], result[storage])
                elif said is True and tie.default is not None:
                    findings.append(_stored_twice(_name(result[tied]), _name(result[storage])))
                continue
            present, absent = (storage, tie.tied) if tied is None else (tied, tie.storage)
            entry = next(iter(family.spellings.by_checkpoint.get(absent, ())), None)
            if want and present is not None and entry is not None and _exists(tie, entries, model):
                result.append(_tied_layer(entry, result[present]))
                entries.append(entry)
    if model.shared:
        findings = []  # They tell that two are stored and decided apart, which the model says otherwise.
    return _as_tree_says(result, model.shared, "checkpoint"), findings


def _tie_word_embeddings(config: Mapping[str, object]) -> bool | None:
    for level in levels(config):
        value = level.get("tie_word_embeddings")
        if isinstance(value, bool):
            return value
    return None


def _stored_twice(tied: str, storage: str) -> Finding:
    return Finding(
        "PQ451",
        "warning",
        f"the configuration says that {tied} is tied to {storage}, but both are stored; each is decided by itself",
        (tied, storage),
    )


def _exists(tie: Tie, entries: Sequence[Entry], model: StoredModel) -> bool:
    """Whether the model has the tied layer at all."""
    if tie.requires and not any(f"{entry.checkpoint}.".startswith(f"{tie.requires}.") for entry in entries):
        return False
    classes = architectures(model.config)
    return tie.default is None or not classes or any(end in each for each in classes for end in WITH_VOCABULARY_OUTPUT)


def _position(name: str, family: Family, entries: Sequence[Entry]) -> int | None:
    names = (name, name.removeprefix(f"{family.base}.") if family.base else name)
    return next((at for at, entry in enumerate(entries) if entry.checkpoint in names), None)


def _has_weight(layer: LayerSet) -> bool:
    return layer.shape != ()


def _tied_layer(entry: Entry, owner: LayerSet) -> LayerSet:
    names = Namer(entry, entry.canonical, 0, None, ()).layer()
    role = place(entry.canonical).role
    return LayerSet(
        kind=role.kind if role else "other",
        indices=((),),
        names=names,
        parts=(Part(entry.canonical, names, owner.shape),),
        shape=owner.shape,
        dtype=owner.dtype,
        stored=owner.stored,
        tied_to=_name(owner),
    )


def _sharing(layer: LayerSet, owner: LayerSet) -> LayerSet:
    """The same layer without the weight; a bias of its own stays its own."""
    own_bytes = 0 if layer.bytes is None or layer.weight_bytes is None else layer.bytes - layer.weight_bytes
    own = 0 if layer.parameters is None or layer.weight_elements is None else layer.parameters - layer.weight_elements
    return replace(
        layer,
        tensors=tuple(tensor for tensor in layer.tensors if tensor.suffix != "weight"),
        parts=tuple(replace(part, shape=owner.shape) for part in layer.parts),
        shape=owner.shape,
        dtype=owner.dtype,
        parameters=own,
        weight_elements=0,
        bytes=own_bytes,
        weight_bytes=0,
        tied_to=_name(owner),
    )


def _as_tree_says(sets: list[LayerSet], shared: Mapping[str, str], naming: Namespace) -> list[LayerSet]:
    """Mark each layer of a module tree whose weight is the same object as an earlier layer's."""
    for tensor, first in shared.items():
        layer_name, _, suffix = tensor.rpartition(".")
        owner_name, _, owner_suffix = first.rpartition(".")
        if suffix != "weight" or owner_suffix != "weight":
            continue
        at, owner_at = _find(sets, layer_name, naming), _find(sets, owner_name, naming)
        if at is None or owner_at is None or layer_name == owner_name:
            continue
        sharing, owner = sets[at], sets[owner_at]
        indices = template_of(layer_name)[1]
        if len(sharing.indices) > 1:
            # Only this member shares; `tied_to` speaks of a whole set.
            rest = tuple(each for each in sharing.indices if each != indices)
            sets[at] = replace(sharing, indices=rest)
            at += 1
            sets.insert(at, replace(sharing, indices=(indices,)))
        tied = _sharing(sets[at], owner)
        owner_indices = template_of(owner_name)[1]
        sets[at] = replace(tied, tied_to=owner.name(owner_indices))
    return sets


def _find(sets: Sequence[LayerSet], name: str, naming: Namespace) -> int | None:
    """Position of the set that has the layer of this name."""
    template, indices = template_of(name)
    for at, layer in enumerate(sets):
        if layer.names[naming][0].template == template and indices in layer.indices:
            return at
    return None


def _name(layer: LayerSet) -> str:
    return layer.name(layer.indices[0])
