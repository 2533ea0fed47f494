"""Fused groups: which parts of a model an engine runs as one, so that they must agree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from policyquant.inventory.architectures.members import leading
from policyquant.inventory.architectures.vocabulary import BLOCK, Place
from policyquant.inventory.layers import GroupForm, Indices, LayerSet, Part


def group_of(where: Place, relative: str, *, gated: bool) -> GroupForm | None:
    """The group of a part.

    Args:
        where: The place of its layer.
        relative: Its own place in the block.
        gated: Whether the MLP or the experts that it may belong to have a gate.
    """
    role = BLOCK.get(relative) if where.block_indices else None
    if role is None or not role.group:
        return None
    fuses_to = role.group
    if relative.endswith(".up_proj") and not gated:
        if role.kind != "moe":
            return None
        fuses_to = relative  # Experts without a gate are still run together.
    return GroupForm(where.prefix + fuses_to, tuple(range(where.block_indices)))


def without_lone_groups(sets: Sequence[LayerSet]) -> list[LayerSet]:
    """The same layers, without groups that have one member only: there is nothing that it must agree with."""
    seen: dict[str, set[Indices]] = {}
    shared: set[str] = set()
    for layer in sets:
        for part in layer.parts:
            if part.group is None or part.group.label in shared:
                continue
            label, width = part.group.label, len(part.group.positions)
            keys = set(leading(layer.indices, width))
            known = seen.setdefault(label, set())
            if part.repeats > 1 or len(keys) < len(layer.indices) or not known.isdisjoint(keys):
                shared.add(label)
            known |= keys
    return [layer if _all_shared(layer.parts, shared) else _only_shared(layer, shared) for layer in sets]


def _all_shared(parts: Iterable[Part], shared: set[str]) -> bool:
    return all(part.group is None or part.group.label in shared for part in parts)


def _only_shared(layer: LayerSet, shared: set[str]) -> LayerSet:
    parts = tuple(
        part if part.group is None or part.group.label in shared else replace(part, group=None) for part in layer.parts
    )
    return replace(layer, parts=parts)
