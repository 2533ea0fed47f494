"""Mixtral: experts named w1 (gate), w3 (up), w2 (down), which transformers v5 holds as 3-D parameters."""

from __future__ import annotations

from policyquant.inventory.architectures.family import Family, under
from policyquant.inventory.architectures.llama import AROUND, ATTENTION, NORMS, TIES

FAMILY = Family(
    name="mixtral",
    base="model",
    layers={
        **AROUND,
        **under(
            "model.layers.#",
            "decoder.#",
            {
                **NORMS,
                **ATTENTION,
                "block_sparse_moe.gate": "moe.router",
                "block_sparse_moe.experts.#.w1": "moe.experts.gate_proj",
                "block_sparse_moe.experts.#.w3": "moe.experts.up_proj",
                "block_sparse_moe.experts.act_fn": "moe.experts.act",
                "block_sparse_moe.experts.#.w2": "moe.experts.down_proj",
            },
        ),
    },
    modules=((".block_sparse_moe", ".mlp"),),
    ties=TIES,
)
