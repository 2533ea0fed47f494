"""T5: encoder and decoder, one embedding for both and (before v1.1) for the head."""

from __future__ import annotations

from policyquant.inventory.architectures.family import Family, Tie, under

_SELF_ATTENTION = {
    "layer.0.layer_norm": "input_norm",
    "layer.0.SelfAttention": "attention",
    "layer.0.SelfAttention.q": "attention.q_proj",
    "layer.0.SelfAttention.k": "attention.k_proj",
    "layer.0.SelfAttention.v": "attention.v_proj",
    "layer.0.SelfAttention.o": "attention.o_proj",
    "layer.0.SelfAttention.relative_attention_bias": "attention.relative_position",
}
_CROSS_ATTENTION = {
    "layer.1.layer_norm": "cross_attention_norm",
    "layer.1.EncDecAttention": "cross_attention",
    "layer.1.EncDecAttention.q": "cross_attention.q_proj",
    "layer.1.EncDecAttention.k": "cross_attention.k_proj",
    "layer.1.EncDecAttention.v": "cross_attention.v_proj",
    "layer.1.EncDecAttention.o": "cross_attention.o_proj",
    # Only in the oldest files, where it is never read.
    "layer.1.EncDecAttention.relative_attention_bias": "cross_attention.relative_position",
}


def _feed_forward(place: int) -> dict[str, str]:
    return {
        f"layer.{place}.layer_norm": "post_attention_norm",
        # T5 has wi alone; v1.1 has a gate, wi_0.
        f"layer.{place}.DenseReluDense.wi": "mlp.up_proj",
        f"layer.{place}.DenseReluDense.wi_0": "mlp.gate_proj",
        f"layer.{place}.DenseReluDense.wi_1": "mlp.up_proj",
        f"layer.{place}.DenseReluDense.act": "mlp.act",
        f"layer.{place}.DenseReluDense.wo": "mlp.down_proj",
    }


FAMILY = Family(
    name="t5",
    layers={
        "shared": "embedding",
        "encoder.embed_tokens": "encoder.embedding",
        **under("encoder.block.#", "encoder.#", {**_SELF_ATTENTION, **_feed_forward(1)}),
        "encoder.final_layer_norm": "encoder.final_norm",
        "decoder.embed_tokens": "decoder.embedding",
        **under("decoder.block.#", "decoder.#", {**_SELF_ATTENTION, **_CROSS_ATTENTION, **_feed_forward(2)}),
        "decoder.final_layer_norm": "final_norm",
        "lm_head": "head",
    },
    ties=(
        Tie("encoder.embed_tokens", "shared", default=None, requires="encoder.block"),
        Tie("decoder.embed_tokens", "shared", default=None, requires="decoder.block"),
        Tie("lm_head", "shared", default=True, requires="decoder.block"),
    ),
)
