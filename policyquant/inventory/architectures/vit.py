"""ViT. transformers v5 spells most of its layers otherwise than its checkpoints do."""

from __future__ import annotations

from policyquant.inventory.architectures.family import Family, under

FAMILY = Family(
    name="vit",
    base="vit",
    layers={
        # Owns the class token and the position embeddings, both bare parameters.
        "vit.embeddings": "vision.embedding",
        "vit.embeddings.patch_embeddings.projection": "vision.patch_embedding",
        **under(
            "vit.encoder.layer.#",
            "vision.#",
            {
                "layernorm_before": "input_norm",
                "attention": "attention",
                "attention.attention.query": "attention.q_proj",
                "attention.attention.key": "attention.k_proj",
                "attention.attention.value": "attention.v_proj",
                "attention.output.dense": "attention.o_proj",
                "layernorm_after": "post_attention_norm",
                "intermediate.dense": "mlp.up_proj",
                "intermediate.intermediate_act_fn": "mlp.act",
                "output.dense": "mlp.down_proj",
            },
        ),
        "vit.layernorm": "vision.final_norm",
        "vit.pooler.dense": "pooler.proj",
        "vit.pooler.activation": "pooler.act",
        "classifier": "head",
    },
    modules=(
        ("vit.encoder.layer", "vit.layers"),
        ("encoder.layer", "layers"),
        (".attention.attention.query", ".attention.q_proj"),
        (".attention.attention.key", ".attention.k_proj"),
        (".attention.attention.value", ".attention.v_proj"),
        (".attention.output.dense", ".attention.o_proj"),
        (".intermediate.dense", ".mlp.fc1"),
        (".intermediate.intermediate_act_fn", ".mlp.activation_fn"),
        (".output.dense", ".mlp.fc2"),
    ),
    feeds={"vision.final_norm": ("head", "pooler.proj")},
)
