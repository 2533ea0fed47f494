"""Qwen2.5-VL: as Qwen2-VL, with gated MLPs in the vision tower."""

from __future__ import annotations

from policyquant.inventory.architectures.family import Family, under
from policyquant.inventory.architectures.llama import MLP, TIES
from policyquant.inventory.architectures.qwen2_vl import AROUND_VISION, MODULES, TEXT, VISION_ATTENTION

FAMILY = Family(
    name="qwen2_5_vl",
    layers={**TEXT, **AROUND_VISION, **under("visual.blocks.#", "vision.#", {**VISION_ATTENTION, **MLP})},
    modules=MODULES,
    equal_parts=frozenset({"vision"}),
    ties=TIES,
)
