"""Layers that share one tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from policyquant.findings import Finding
from policyquant.inventory.architectures import architectures
from policyquant.inventory.architectures.family import Entry, Family, Tie
from policyquant.inventory.architectures.naming import Namer
from policyquant.inventory.architectures.vocabulary import place
from policyquant.inventory.layers import LayerSet, Part, StoredModel

_WITH_VOCABULARY_OUTPUT = (
    "CausalLM",
    "LMHead",
    "ConditionalGeneration",
    "PreTraining",
    "MaskedLM",
    "Vision2Seq",
    "ImageTextToText",
)


def with_ties(
    sets: Sequence[LayerSet],
    entries: Sequence[Entry],
    families: Sequence[Family],
    model: StoredModel,
    *,
    as_module: bool,
) -> tuple[list[LayerSet], list[Finding]]:
    """Add tied layers that own no tensor, and mark those that a module tree lists although they share one.

    Args:
        sets: The layers so far.
        entries: The entry of each of them.
        families: Data that applies.
        model: The source.
        as_module: Whether it is a module tree, whose state lists a shared tensor under each name.
    """
    result = list(sets)
    entries = list(entries)
    findings: list[Finding] = []
    said = _tie_word_embeddings(model.config)
    for family in families:
        for tie in family.ties:
            want = True if tie.default is None else (tie.default if said is None else said)
            tied = _position(tie.tied, family, entries)
            storage = _position(tie.storage, family, entries)
            if tied is not None and storage is not None:
                if want and as_module:
                    result[tied] = _sharing(result[tied], result[storage])
                elif said is True and tie.default is not None:
                    findings.append(
                        Finding(
                            "PQ451",
                            "warning",
                            f"the configuration says that {_name(result[tied])} is tied to {_name(result[storage])},"
                            f" but the checkpoint stores both; each is decided by itself",
                            (_name(result[tied]), _name(result[storage])),
                        )
                    )
            elif want and (tied is not None or storage is not None) and _exists(tie, entries, model):
                owner = result[storage if storage is not None else tied]  # type: ignore[index]  # one is not None
                for entry in _entries(tie.tied if tied is None else tie.storage, family, owner):
                    result.append(_tied_layer(entry, owner))
                    entries.append(entry)
    return result, findings


def _tie_word_embeddings(config: Mapping[str, object]) -> bool | None:
    for holder in (config, config.get("text_config")):
        if isinstance(holder, Mapping):
            value = holder.get("tie_word_embeddings")
            if isinstance(value, bool):
                return value
    return None


def _exists(tie: Tie, entries: Sequence[Entry], model: StoredModel) -> bool:
    """Whether the model has the tied layer at all."""
    if tie.requires and not any(
        entry.checkpoint == tie.requires or entry.checkpoint.startswith(f"{tie.requires}.") for entry in entries
    ):
        return False
    classes = architectures(model.config)
    return tie.default is None or not classes or any(end in each for each in classes for end in _WITH_VOCABULARY_OUTPUT)


def _spelled(name: str, family: Family) -> tuple[str, ...]:
    bare = name.removeprefix(f"{family.base}.")
    return (name,) if bare == name else (name, bare)


def _position(name: str, family: Family, entries: Sequence[Entry]) -> int | None:
    names = _spelled(name, family)
    return next((at for at, entry in enumerate(entries) if entry.checkpoint in names), None)


def _entries(name: str, family: Family, owner: LayerSet) -> list[Entry]:
    return family.spellings.by_checkpoint.get(name, [])[:1]


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
    return replace(
        layer, tensors=(), parameters=0, weight_elements=0, bytes=0, weight_bytes=0, tied_to=_name(owner)
    )


def _name(layer: LayerSet) -> str:
    return layer.name(layer.indices[0])
