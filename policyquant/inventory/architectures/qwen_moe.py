"""Qwen3-MoE and Qwen2-MoE (which also has one shared expert with a gate of its own)."""

from __future__ import annotations

from policyquant.inventory.architectures.family import Family, under
from policyquant.inventory.architectures.llama import AROUND, ATTENTION, MLP, NORMS, TIES

ROUTED_EXPERTS = {
    "mlp.gate": "moe.router",
    "mlp.experts.#.gate_proj": "moe.experts.gate_proj",
    "mlp.experts.#.up_proj": "moe.experts.up_proj",
    "mlp.experts.act_fn": "moe.experts.act",
    "mlp.experts.#.down_proj": "moe.experts.down_proj",
}

FAMILY = Family(
    name="qwen_moe",
    base="model",
    layers={
        **AROUND,
        **under(
            "model.layers.#",
            "decoder.#",
            {
                **NORMS,
                **ATTENTION,
                # `mlp_only_layers` and `decoder_sparse_step` leave some blocks dense.
                **MLP,
                **ROUTED_EXPERTS,
                "mlp.shared_expert.gate_proj": "moe.shared_experts.gate_proj",
                "mlp.shared_expert.up_proj": "moe.shared_experts.up_proj",
                "mlp.shared_expert.act_fn": "moe.shared_experts.act",
                "mlp.shared_expert.down_proj": "moe.shared_experts.down_proj",
                "mlp.shared_expert_gate": "moe.shared_expert_gate",
            },
        ),
    },
    ties=TIES,
)
