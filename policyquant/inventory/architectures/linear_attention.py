"""Which attention modules of an unknown family are linear attention, which keeps a state and no KV cache."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from policyquant.inventory.architectures import common_spellings as words
from policyquant.inventory.layers import INDEX, StoredSet


def linear_attention(
    stored: Sequence[StoredSet], children: Mapping[str, Collection[str]]
) -> Mapping[str, frozenset[int]]:
    """Name of each attention module that is linear attention → the blocks where it is.

    Hybrids call both kinds of attention alike, and so some of what is inside.

    Args:
        stored: All layers of the model.
        children: Name of each module → last parts of what is right inside it.
    """
    found: dict[str, set[int]] = defaultdict(set)
    for each in stored:
        module = attention_module(each.template)
        if not module:
            continue
        below = each.template[len(module) + 1 :].partition(".")[0].lower()
        own = {below} if below else {tensor.suffix.lower() for tensor in each.tensors}
        lightning = below in words.LIGHTNING_ATTENTION and words.LIGHTNING_ATTENTION.issubset(children.get(module, ()))
        if lightning or not own.isdisjoint(words.LINEAR_ATTENTION):
            found[module].update(indices[0] for indices in each.indices)
    return {module: frozenset(blocks) for module, blocks in found.items()}


def attention_module(template: str) -> str:
    """The attention module that a layer of a block is in, or is; empty if it is in none."""
    parts = template.split(".")
    for at, part in enumerate(parts):
        if part.lower() in words.ATTENTION and INDEX in parts[:at]:
            return ".".join(parts[: at + 1])
    return ""
