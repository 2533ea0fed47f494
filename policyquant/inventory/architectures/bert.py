"""BERT: an encoder that norms after each half of a block, so that every norm also feeds the residual stream."""

from __future__ import annotations

from policyquant.inventory.architectures.family import Family, Tie, under

FAMILY = Family(
    name="bert",
    base="bert",
    layers={
        "bert.embeddings.word_embeddings": "embedding",
        "bert.embeddings.position_embeddings": "position_embedding",
        "bert.embeddings.token_type_embeddings": "type_embedding",
        "bert.embeddings.LayerNorm": "embedding_norm",
        **under(
            "bert.encoder.layer.#",
            "encoder.#",
            {
                "attention.self": "attention",
                "attention.self.query": "attention.q_proj",
                "attention.self.key": "attention.k_proj",
                "attention.self.value": "attention.v_proj",
                "attention.output.dense": "attention.o_proj",
                "attention.output.LayerNorm": "post_attention_norm",
                "intermediate.dense": "mlp.up_proj",
                "intermediate.intermediate_act_fn": "mlp.act",
                "output.dense": "mlp.down_proj",
                "output.LayerNorm": "post_mlp_norm",
            },
        ),
        "bert.pooler.dense": "pooler.proj",
        "bert.pooler.activation": "pooler.act",
        "cls.predictions.transform.dense": "head_transform.proj",
        "cls.predictions.transform.transform_act_fn": "head_transform.act",
        "cls.predictions.transform.LayerNorm": "head_transform.norm",
        # Owns the bias of the output vocabulary and nothing else.
        "cls.predictions": "head.bias",
        "cls.predictions.decoder": "head",
        "cls.seq_relationship": "head.next_sentence",
        "classifier": "head",
        "qa_outputs": "head",
    },
    feeds={
        "encoder.#.post_attention_norm": None,
        "encoder.#.post_mlp_norm": None,
        "pooler.act": ("head.next_sentence", "head"),
        "head_transform.act": (),
        "head_transform.norm": ("head",),
    },
    ties=(
        Tie(
            "cls.predictions.decoder",
            "bert.embeddings.word_embeddings",
            default=True,
            requires="cls.predictions",
        ),
    ),
)
