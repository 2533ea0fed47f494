"""DeepSeek-V2/V3/R1 and Kimi-K2: latent attention (MLA), shared experts, in V3 a layer that predicts one token more.

The prediction layer is stored as one more block behind the last; transformers v5 does not build it.
"""

from __future__ import annotations

from policyquant.inventory.architectures.family import Family, under
from policyquant.inventory.architectures.llama import AROUND, MLP, NORMS, TIES
from policyquant.inventory.architectures.qwen_moe import ROUTED_EXPERTS

LATENT_ATTENTION = {
    "self_attn": "attention",
    # Models without `q_lora_rank` project the query at once.
    "self_attn.q_proj": "attention.q_proj",
    "self_attn.q_a_proj": "attention.q_a_proj",
    "self_attn.q_a_layernorm": "attention.q_a_norm",
    "self_attn.q_b_proj": "attention.q_b_proj",
    "self_attn.kv_a_proj_with_mqa": "attention.kv_a_proj",
    "self_attn.kv_a_layernorm": "attention.kv_a_norm",
    "self_attn.kv_b_proj": "attention.kv_b_proj",
    "self_attn.o_proj": "attention.o_proj",
}
PREDICTION = {
    "embed_tokens": "embedding",
    "enorm": "embedding_norm",
    "hnorm": "hidden_norm",
    "eh_proj": "eh_proj",
    "shared_head.norm": "final_norm",
    "shared_head.head": "head",
}

FAMILY = Family(
    name="deepseek",
    base="model",
    layers={
        **AROUND,
        **under(
            "model.layers.#",
            "decoder.#",
            {
                **NORMS,
                **LATENT_ATTENTION,
                # The first `first_k_dense_replace` blocks are dense.
                **MLP,
                **ROUTED_EXPERTS,
                "mlp.shared_experts.gate_proj": "moe.shared_experts.gate_proj",
                "mlp.shared_experts.up_proj": "moe.shared_experts.up_proj",
                "mlp.shared_experts.act_fn": "moe.shared_experts.act",
                "mlp.shared_experts.down_proj": "moe.shared_experts.down_proj",
            },
        ),
        **under("model.layers.#", "mtp.#", PREDICTION),
    },
    ties=TIES,
)
