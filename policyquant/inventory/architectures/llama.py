"""Llama and the dense models built like it: Mistral, Qwen2, Qwen3."""

from __future__ import annotations

from policyquant.inventory.architectures.family import Family, Tie, under

NORMS = {
    "input_layernorm": "input_norm",
    "post_attention_layernorm": "post_attention_norm",
}
ATTENTION = {
    "self_attn": "attention",
    "self_attn.q_proj": "attention.q_proj",
    "self_attn.k_proj": "attention.k_proj",
    "self_attn.v_proj": "attention.v_proj",
    "self_attn.q_norm": "attention.q_norm",
    "self_attn.k_norm": "attention.k_norm",
    "self_attn.o_proj": "attention.o_proj",
}
MLP = {
    "mlp.gate_proj": "mlp.gate_proj",
    "mlp.up_proj": "mlp.up_proj",
    "mlp.act_fn": "mlp.act",
    "mlp.down_proj": "mlp.down_proj",
}
AROUND = {
    "model.embed_tokens": "embedding",
    "model.norm": "final_norm",
    "lm_head": "head",
    # LlamaForSequenceClassification and its like; ForTokenClassification; ForQuestionAnswering.
    "score": "head",
    "classifier": "head",
    "qa_outputs": "head",
}
TIES = (Tie("lm_head", "model.embed_tokens"),)

FAMILY = Family(
    name="llama",
    base="model",
    layers={**AROUND, **under("model.layers.#", "decoder.#", {**NORMS, **ATTENTION, **MLP})},
    ties=TIES,
)
