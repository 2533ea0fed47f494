"""Gemma 3, text alone or with its SigLIP vision tower. Each half of a block is normed before and after."""

from __future__ import annotations

from policyquant.inventory.architectures.family import Family, Tie, under
from policyquant.inventory.architectures.llama import ATTENTION, MLP

_BLOCK = {
    **ATTENTION,
    **MLP,
    "input_layernorm": "input_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "pre_mlp_norm",
    "post_feedforward_layernorm": "post_mlp_norm",
}
SIGLIP_BLOCK = {
    "layer_norm1": "input_norm",
    "layer_norm2": "post_attention_norm",
    "self_attn": "attention",
    "self_attn.q_proj": "attention.q_proj",
    "self_attn.k_proj": "attention.k_proj",
    "self_attn.v_proj": "attention.v_proj",
    "self_attn.out_proj": "attention.o_proj",
    "mlp.fc1": "mlp.up_proj",
    "mlp.activation_fn": "mlp.act",
    "mlp.fc2": "mlp.down_proj",
}


def _siglip(prefix: str) -> dict[str, str]:
    return {
        f"{prefix}.embeddings.patch_embedding": "vision.patch_embedding",
        f"{prefix}.embeddings.position_embedding": "vision.position_embedding",
        **under(f"{prefix}.encoder.layers.#", "vision.#", SIGLIP_BLOCK),
        f"{prefix}.post_layernorm": "vision.final_norm",
    }


FAMILY = Family(
    name="gemma3",
    layers={
        "language_model.model.embed_tokens": "embedding",
        **under("language_model.model.layers.#", "decoder.#", _BLOCK),
        "language_model.model.norm": "final_norm",
        "lm_head": "head",
        "language_model.lm_head": "head",
        **_siglip("vision_tower.vision_model"),
        # As transformers v5 writes it.
        **_siglip("vision_tower"),
        "multi_modal_projector": "projector",
        "multi_modal_projector.mm_soft_emb_norm": "projector.norm",
        # Gemma3ForCausalLM: text alone.
        "model.embed_tokens": "embedding",
        **under("model.layers.#", "decoder.#", _BLOCK),
        "model.norm": "final_norm",
    },
    modules=(
        ("language_model.model", "model.language_model"),
        ("language_model.lm_head", "lm_head"),
        ("vision_tower.vision_model", "model.vision_tower"),
        ("vision_tower", "model.vision_tower"),
        ("multi_modal_projector", "model.multi_modal_projector"),
    ),
    weights={"multi_modal_projector": "mm_input_projection_weight"},
    transposed=frozenset({"multi_modal_projector.mm_input_projection_weight"}),
    feeds={"decoder.#.post_attention_norm": (), "projector.norm": ("projector",)},
    ties=(
        Tie("lm_head", "language_model.model.embed_tokens", default=True, requires="language_model.model.embed_tokens"),
        Tie("lm_head", "model.embed_tokens", default=True, requires="model.embed_tokens"),
    ),
)
