"""Phi-3: q/k/v and gate/up are stored fused."""

from __future__ import annotations

from policyquant.inventory.architectures.family import Family, under
from policyquant.inventory.architectures.llama import AROUND, NORMS, TIES

FAMILY = Family(
    name="phi3",
    base="model",
    layers={
        **AROUND,
        **under(
            "model.layers.#",
            "decoder.#",
            {
                **NORMS,
                "self_attn": "attention",
                "self_attn.qkv_proj": "attention.qkv_proj",
                "self_attn.o_proj": "attention.o_proj",
                "mlp.gate_up_proj": "mlp.gate_up_proj",
                "mlp.activation_fn": "mlp.act",
                "mlp.down_proj": "mlp.down_proj",
            },
        ),
    },
    ties=TIES,
)
