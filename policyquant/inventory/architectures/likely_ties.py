"""Which layers of an unknown family probably share one tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from policyquant.inventory.architectures import architectures
from policyquant.inventory.architectures.family import Tie
from policyquant.inventory.architectures.towers import Tower

_OFTEN_TIED: Final = ("lm_head", "output", "vocab_projector", "decoder")
"""Ends of names of heads that may share the embedding."""


def likely_ties(
    layers: Mapping[str, str], towers: Sequence[Tower], config: Mapping[str, object]
) -> tuple[tuple[Tie, ...], Mapping[str, str]]:
    """Ties, and rows for the layers that are not stored but probably tied: as is transformers' default.

    Args:
        layers: Checkpoint template → canonical template of what is known to be there.
        towers: The stacks of blocks.
        config: Values of `config.json`.
    """
    storage = next((name for name, canonical in layers.items() if canonical == "embedding"), None)
    if storage is None:
        return (), {}
    classes = architectures(config)
    likely = any(end in each for each in classes for end in ("CausalLM", "ConditionalGeneration", "LMHead"))
    masked = any("MaskedLM" in each or "PreTraining" in each for each in classes)
    heads = [name for name, canonical in layers.items() if canonical == "head"]
    result = [Tie(name, storage, default=likely or masked) for name in heads if name.endswith(_OFTEN_TIED)]
    rows: dict[str, str] = {}
    if not heads:
        name = _head_name(layers, config)
        rows[name] = "head"
        result.append(Tie(name, storage, default=likely or (masked and name != "lm_head")))
    if storage == "shared":
        for tower in towers:
            name = f"{tower.blocks.partition('.')[0]}.embed_tokens"
            if tower.name in ("encoder", "decoder") and name not in layers:
                rows[name] = f"{tower.name}.embedding"
                result.append(Tie(name, "shared", default=None))
    return tuple(result), rows


def _head_name(layers: Mapping[str, str], config: Mapping[str, object]) -> str:
    known = {"vocab_transform": "vocab_projector", "lm_head.dense": "lm_head.decoder"}
    for stored, head in known.items():
        if stored in layers:
            return head
    before = next((name for name in layers if name.endswith("predictions.transform.dense")), "")
    if before:
        return f"{before.removesuffix('transform.dense')}decoder"
    return "proj_out" if config.get("model_type") == "whisper" else "lm_head"
