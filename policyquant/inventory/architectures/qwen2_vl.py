"""Qwen2-VL: a Qwen2 decoder, a vision tower with fused q/k/v, and a merger of patches as projector."""

from __future__ import annotations

from policyquant.inventory.architectures.family import Family, under
from policyquant.inventory.architectures.llama import AROUND, ATTENTION, MLP, NORMS, TIES

TEXT = {**AROUND, **under("model.layers.#", "decoder.#", {**NORMS, **ATTENTION, **MLP})}
VISION_ATTENTION = {
    "norm1": "input_norm",
    "norm2": "post_attention_norm",
    "attn": "attention",
    "attn.qkv": "attention.qkv_proj",
    "attn.proj": "attention.o_proj",
}
AROUND_VISION = {
    "visual.patch_embed.proj": "vision.patch_embedding",
    "visual.merger.ln_q": "projector.norm",
    "visual.merger.mlp.0": "projector.linear_1",
    "visual.merger.mlp.1": "projector.act",
    "visual.merger.mlp.2": "projector.linear_2",
}
MODULES = (("model", "model.language_model"), ("visual", "model.visual"))

FAMILY = Family(
    name="qwen2_vl",
    layers={
        **TEXT,
        **AROUND_VISION,
        **under(
            "visual.blocks.#",
            "vision.#",
            {
                **VISION_ATTENTION,
                "mlp.fc1": "mlp.up_proj",
                "mlp.act": "mlp.act",
                "mlp.fc2": "mlp.down_proj",
            },
        ),
    },
    modules=MODULES,
    equal_parts=frozenset({"vision"}),
    ties=TIES,
)
