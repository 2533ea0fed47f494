"""OPT. Its 350M model norms after each half of a block instead of before (`do_layer_norm_before: false`)."""

from __future__ import annotations

from policyquant.inventory.architectures.family import Family, Tie, under

FAMILY = Family(
    name="opt",
    base="model",
    layers={
        "model.decoder.embed_tokens": "embedding",
        "model.decoder.embed_positions": "position_embedding",
        # The 350M model's embeddings are narrower than its blocks.
        "model.decoder.project_in": "decoder.projection",
        "model.decoder.project_out": "decoder.projection",
        **under(
            "model.decoder.layers.#",
            "decoder.#",
            {
                "self_attn_layer_norm": "input_norm",
                "self_attn": "attention",
                "self_attn.q_proj": "attention.q_proj",
                "self_attn.k_proj": "attention.k_proj",
                "self_attn.v_proj": "attention.v_proj",
                "self_attn.out_proj": "attention.o_proj",
                "final_layer_norm": "post_attention_norm",
                "fc1": "mlp.up_proj",
                "activation_fn": "mlp.act",
                "fc2": "mlp.down_proj",
            },
        ),
        "model.decoder.final_layer_norm": "final_norm",
        "lm_head": "head",
        "score": "head",
        "qa_outputs": "head",
    },
    post_norm_when=("do_layer_norm_before", False),
    modules=(("decoder", "model.decoder"),),
    ties=(Tie("lm_head", "model.decoder.embed_tokens", default=True),),
)
