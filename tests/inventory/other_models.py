"""Tensor names of models that have no architecture data of their own, as their published checkpoints spell them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

QKVO = ("q_proj", "k_proj", "v_proj", "o_proj")
GATED = ("gate_proj", "up_proj", "down_proj")


class Other(NamedTuple):
    """One model: its configuration and the names of its tensors."""

    config: Mapping[str, object]
    tensors: tuple[str, ...]


def _weights(prefix: str, *names: str) -> list[str]:
    return [f"{prefix}.{name}.weight" for name in names]


def _layers(prefix: str, count: int, *names: str, bare: Iterable[str] = ()) -> list[str]:
    return [
        name
        for number in range(count)
        for name in (*_weights(f"{prefix}.{number}", *names), *(f"{prefix}.{number}.{each}" for each in bare))
    ]


def _inside(module: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{module}.{name}" for name in names)


def _config(model_type: str, *classes: str, **more: object) -> dict[str, object]:
    return {"model_type": model_type, "architectures": list(classes), **more}


_TOP = ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]
_LLAMA = (*_inside("self_attn", *QKVO), *_inside("mlp", *GATED), "input_layernorm", "post_attention_layernorm")
_CLIP = (
    *_inside("self_attn", "q_proj", "k_proj", "v_proj", "out_proj"),
    "mlp.fc1",
    "mlp.fc2",
    "layer_norm1",
    "layer_norm2",
)
_BERT = (
    *_inside("attention.self", "query", "key", "value"),
    "attention.output.dense",
    "attention.output.LayerNorm",
    "intermediate.dense",
    "output.dense",
    "output.LayerNorm",
)
_WHISPER = (
    *_inside("self_attn", "q_proj", "k_proj", "v_proj", "out_proj"),
    "self_attn_layer_norm",
    "fc1",
    "fc2",
    "final_layer_norm",
)
_NEOX = (
    "attention.query_key_value",
    "attention.dense",
    "mlp.dense_h_to_4h",
    "mlp.dense_4h_to_h",
    "input_layernorm",
    "post_attention_layernorm",
)
_MAMBA = ("in_proj", "out_proj", "conv1d")
_STATES = ("A_log", "D", "dt_bias")


def _experts(module: str, *projections: str) -> tuple[str, ...]:
    return tuple(f"{module}.experts.{expert}.{each}" for expert in range(2) for each in projections)


_QWEN3_NEXT_MLP = (
    "mlp.gate",
    *_experts("mlp", *GATED),
    *_inside("mlp.shared_expert", *GATED),
    "mlp.shared_expert_gate",
    "input_layernorm",
    "post_attention_layernorm",
)

OTHERS: Mapping[str, Other] = {
    "OLMo-2": Other(
        _config("olmo2", "Olmo2ForCausalLM"),
        (
            *_TOP,
            *_layers(
                "model.layers",
                3,
                *_inside("self_attn", *QKVO, "q_norm", "k_norm"),
                *_inside("mlp", *GATED),
                "post_attention_layernorm",
                "post_feedforward_layernorm",
            ),
        ),
    ),
    "InternLM2": Other(
        _config("internlm2", "InternLM2ForCausalLM"),
        (
            "model.tok_embeddings.weight",
            "model.norm.weight",
            "output.weight",
            *_layers(
                "model.layers",
                2,
                "attention.wqkv",
                "attention.wo",
                *_inside("feed_forward", "w1", "w2", "w3"),
                "attention_norm",
                "ffn_norm",
            ),
        ),
    ),
    "Qwen3-Next": Other(
        _config("qwen3_next", "Qwen3NextForCausalLM", num_hidden_layers=4),
        (
            *_TOP,
            *_layers(
                "model.layers",
                3,
                *_inside("linear_attn", "in_proj_qkvz", "in_proj_ba", "conv1d", "norm", "out_proj"),
                *_QWEN3_NEXT_MLP,
                bare=_inside("linear_attn", "A_log", "dt_bias"),
            ),
            *_weights("model.layers.3", *_inside("self_attn", *QKVO, "q_norm", "k_norm"), *_QWEN3_NEXT_MLP),
            *_weights("mtp.layers.0", *_inside("self_attn", *QKVO, "q_norm", "k_norm"), *_QWEN3_NEXT_MLP),
            *_weights("mtp", "fc", "norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"),
        ),
    ),
    "Nemotron-H": Other(
        _config("nemotron_h", "NemotronHForCausalLM"),
        (
            "backbone.embeddings.weight",
            "backbone.norm_f.weight",
            "lm_head.weight",
            *_layers("backbone.layers", 4, "norm"),
            *_weights("backbone.layers.0.mixer", *_MAMBA, "norm"),
            *(f"backbone.layers.0.mixer.{name}" for name in _STATES),
            *_weights("backbone.layers.1.mixer", "up_proj", "down_proj"),
            *_weights("backbone.layers.2.mixer", *QKVO),
            *_weights("backbone.layers.3.mixer", "gate", *_inside("shared_experts", "up_proj", "down_proj")),
            *_layers("backbone.layers.3.mixer.experts", 2, "up_proj", "down_proj"),
        ),
    ),
    "Jamba": Other(
        _config("jamba", "JambaForCausalLM"),
        (
            "model.embed_tokens.weight",
            "model.final_layernorm.weight",
            "lm_head.weight",
            *_layers("model.layers", 2, "input_layernorm", "pre_ff_layernorm"),
            *_weights("model.layers.0.mamba", *_MAMBA, "x_proj", "dt_proj", "dt_layernorm", "b_layernorm"),
            "model.layers.0.mamba.A_log",
            *_weights("model.layers.0.feed_forward", *GATED),
            *_weights("model.layers.1", *_inside("self_attn", *QKVO), "feed_forward.router"),
            *_layers("model.layers.1.feed_forward.experts", 2, *GATED),
        ),
    ),
    "Falcon-H1": Other(
        _config("falcon_h1", "FalconH1ForCausalLM"),
        (
            *_TOP,
            *_layers(
                "model.layers",
                2,
                *_inside("mamba", *_MAMBA),
                *_inside("self_attn", *QKVO),
                *_inside("feed_forward", *GATED),
                "input_layernorm",
                "pre_ff_layernorm",
                bare=_inside("mamba", *_STATES),
            ),
        ),
    ),
    "DBRX": Other(
        _config("dbrx", "DbrxForCausalLM"),
        (
            "transformer.wte.weight",
            "transformer.norm_f.weight",
            "lm_head.weight",
            *_layers(
                "transformer.blocks",
                2,
                *_inside("norm_attn_norm", "norm_1", "norm_2", "attn.Wqkv", "attn.out_proj"),
                "ffn.router.layer",
                bare=_inside("ffn.experts.mlp", "w1", "v1", "w2"),
            ),
        ),
    ),
    "MiniMax-M2": Other(
        _config("minimax_m2", "MiniMaxM2ForCausalLM"),
        (
            *_TOP,
            *_layers(
                "model.layers",
                2,
                *_inside("self_attn", *QKVO, "q_norm", "k_norm"),
                "block_sparse_moe.gate",
                *_experts("block_sparse_moe", "w1", "w2", "w3"),
                "input_layernorm",
                "post_attention_layernorm",
                bare=["block_sparse_moe.e_score_correction_bias"],
            ),
        ),
    ),
    "Hunyuan": Other(
        _config("hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM", tie_word_embeddings=True),
        (
            "model.embed_tokens.weight",
            "model.norm.weight",
            *_layers(
                "model.layers",
                2,
                *_inside("self_attn", *QKVO, "query_layernorm", "key_layernorm"),
                "mlp.gate.wg",
                *_inside("mlp.shared_mlp", *GATED),
                *_experts("mlp", *GATED),
                "input_layernorm",
                "post_attention_layernorm",
            ),
        ),
    ),
    "GLM-5": Other(
        _config("glm_moe_dsa", "GlmMoeDsaForCausalLM", num_hidden_layers=2, num_nextn_predict_layers=1),
        (
            *_TOP,
            *_layers(
                "model.layers",
                3,
                *_inside("self_attn", "q_a_proj", "q_a_layernorm", "q_b_proj", "o_proj"),
                *_inside("self_attn", "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj"),
                *_inside("self_attn.indexer", "wq_b", "wk", "k_norm", "weights_proj"),
                "mlp.gate",
                *_inside("mlp.shared_experts", *GATED),
                *_experts("mlp", *GATED),
                "input_layernorm",
                "post_attention_layernorm",
                bare=["mlp.gate.e_score_correction_bias"],
            ),
            *_weights(
                "model.layers.2", "eh_proj", "enorm", "hnorm", "embed_tokens", "shared_head.norm", "shared_head.head"
            ),
        ),
    ),
    "Llama-4": Other(
        _config("llama4", "Llama4ForConditionalGeneration"),
        (
            "language_model.model.embed_tokens.weight",
            "language_model.model.norm.weight",
            "language_model.lm_head.weight",
            "multi_modal_projector.linear_1.weight",
            "vision_model.class_embedding",
            "vision_model.positional_embedding_vlm",
            "vision_model.patch_embedding.linear.weight",
            "vision_model.layernorm_pre.weight",
            "vision_model.layernorm_post.weight",
            "vision_model.vision_adapter.mlp.fc1.weight",
            "vision_model.vision_adapter.mlp.fc2.weight",
            *_layers(
                "language_model.model.layers",
                2,
                *_inside("self_attn", *QKVO),
                "feed_forward.router",
                *_inside("feed_forward.shared_expert", *GATED),
                "input_layernorm",
                "post_attention_layernorm",
                bare=_inside("feed_forward.experts", "gate_up_proj", "down_proj"),
            ),
            *_layers(
                "vision_model.model.layers",
                2,
                *_inside("self_attn", *QKVO),
                "mlp.fc1",
                "mlp.fc2",
                "input_layernorm",
                "post_attention_layernorm",
            ),
        ),
    ),
    "GraniteMoE": Other(
        _config("granitemoe", "GraniteMoeForCausalLM", tie_word_embeddings=True),
        (
            "model.embed_tokens.weight",
            "model.norm.weight",
            *_layers(
                "model.layers",
                2,
                *_inside("self_attn", *QKVO),
                *_inside("block_sparse_moe", "router.layer", "input_linear", "output_linear"),
                "input_layernorm",
                "post_attention_layernorm",
            ),
        ),
    ),
    "RoBERTa": Other(
        _config("roberta", "RobertaForMaskedLM"),
        (
            *_weights("roberta.embeddings", "word_embeddings", "position_embeddings", "token_type_embeddings"),
            "roberta.embeddings.LayerNorm.weight",
            *_layers("roberta.encoder.layer", 2, *_BERT),
            "lm_head.bias",
            "lm_head.dense.weight",
            "lm_head.layer_norm.weight",
        ),
    ),
    "DistilBERT": Other(
        _config("distilbert", "DistilBertForMaskedLM"),
        (
            *_weights("distilbert.embeddings", "word_embeddings", "position_embeddings", "LayerNorm"),
            *_layers(
                "distilbert.transformer.layer",
                2,
                *_inside("attention", "q_lin", "k_lin", "v_lin", "out_lin"),
                "sa_layer_norm",
                "ffn.lin1",
                "ffn.lin2",
                "output_layer_norm",
            ),
            "vocab_transform.weight",
            "vocab_layer_norm.weight",
            "vocab_projector.bias",
        ),
    ),
    "ModernBERT": Other(
        _config("modernbert", "ModernBertForMaskedLM"),
        (
            "model.embeddings.tok_embeddings.weight",
            "model.embeddings.norm.weight",
            *_layers("model.layers", 2, "attn_norm", "attn.Wqkv", "attn.Wo", "mlp_norm", "mlp.Wi", "mlp.Wo"),
            "model.final_norm.weight",
            "head.dense.weight",
            "head.norm.weight",
            "decoder.weight",
        ),
    ),
    "LLaVA": Other(
        _config("llava", "LlavaForConditionalGeneration"),
        (
            "language_model.model.embed_tokens.weight",
            "language_model.model.norm.weight",
            "language_model.lm_head.weight",
            *_layers("language_model.model.layers", 2, *_LLAMA),
            *_weights("multi_modal_projector", "linear_1", "linear_2"),
            "vision_tower.vision_model.embeddings.class_embedding",
            *_weights("vision_tower.vision_model.embeddings", "patch_embedding", "position_embedding"),
            *_weights("vision_tower.vision_model", "pre_layrnorm", "post_layernorm"),
            *_layers("vision_tower.vision_model.encoder.layers", 2, *_CLIP),
        ),
    ),
    "Whisper": Other(
        _config("whisper", "WhisperForConditionalGeneration"),
        (
            *_weights("model.encoder", "conv1", "conv2", "embed_positions", "layer_norm"),
            *_layers("model.encoder.layers", 2, *_WHISPER),
            *_weights("model.decoder", "embed_tokens", "embed_positions", "layer_norm"),
            *_layers(
                "model.decoder.layers",
                2,
                *_WHISPER,
                *_inside("encoder_attn", "q_proj", "k_proj", "v_proj", "out_proj"),
                "encoder_attn_layer_norm",
            ),
        ),
    ),
    "DINOv2": Other(
        _config("dinov2", "Dinov2Model"),
        (
            "embeddings.cls_token",
            "embeddings.position_embeddings",
            "embeddings.patch_embeddings.projection.weight",
            *_layers(
                "encoder.layer",
                2,
                *_inside("attention.attention", "query", "key", "value"),
                "attention.output.dense",
                "mlp.fc1",
                "mlp.fc2",
                "norm1",
                "norm2",
                bare=["layer_scale1.lambda1"],
            ),
            "layernorm.weight",
        ),
    ),
    "InternVL": Other(
        _config("internvl_chat", "InternVLChatModel"),
        (
            "vision_model.embeddings.class_embedding",
            "vision_model.embeddings.patch_embedding.weight",
            *_layers("vision_model.encoder.layers", 2, "attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2", "norm1", "norm2"),
            *_weights("mlp1", "0", "1", "3"),
            "language_model.model.embed_tokens.weight",
            "language_model.model.norm.weight",
            "language_model.lm_head.weight",
            *_layers("language_model.model.layers", 2, *_LLAMA),
        ),
    ),
    "GPT-NeoX": Other(
        _config("gpt_neox", "GPTNeoXForCausalLM"),
        (
            *_weights("gpt_neox", "embed_in", "final_layer_norm"),
            *_layers(
                "gpt_neox.layers",
                2,
                *_NEOX,
                bare=["attention.bias", "attention.masked_bias", "attention.rotary_emb.inv_freq"],
            ),
            "embed_out.weight",
        ),
    ),
    "BLOOM": Other(
        _config("bloom", "BloomForCausalLM"),
        (
            "word_embeddings.weight",
            "word_embeddings_layernorm.weight",
            *_layers("h", 2, *(name.replace("attention.", "self_attention.", 1) for name in _NEOX[:2]), *_NEOX[2:]),
            "ln_f.weight",
        ),
    ),
    "Swin": Other(
        _config("swin", "SwinForImageClassification"),
        (
            "swin.embeddings.patch_embeddings.projection.weight",
            "swin.embeddings.norm.weight",
            *_layers(
                "swin.encoder.layers.0.blocks",
                2,
                *_inside("attention.self", "query", "key", "value"),
                "attention.output.dense",
                "intermediate.dense",
                "output.dense",
                "layernorm_before",
                "layernorm_after",
            ),
            "swin.layernorm.weight",
            "classifier.weight",
        ),
    ),
    "Llama-3.2-Vision": Other(
        _config("mllama", "MllamaForConditionalGeneration"),
        (
            "language_model.model.embed_tokens.weight",
            "language_model.lm_head.weight",
            *_weights("language_model.model.layers.0", *_LLAMA),
            *_weights("language_model.model.layers.1", *_inside("cross_attn", *QKVO, "q_norm", "k_norm")),
            "multi_modal_projector.weight",
            "vision_model.patch_embedding.weight",
            *_layers("vision_model.transformer.layers", 2, *_inside("self_attn", *QKVO), "mlp.fc1", "mlp.fc2"),
            *_layers("vision_model.global_transformer.layers", 2, *_inside("self_attn", *QKVO), "mlp.fc1", "mlp.fc2"),
        ),
    ),
    "a diffusion transformer": Other(
        {},
        (
            *_layers(
                "blocks",
                2,
                *_inside("attn1", "to_q", "to_k", "to_v", "to_out.0"),
                *_inside("attn2", "to_q", "to_k", "to_v", "to_out.0"),
                "ffn.net.0.proj",
                "ffn.net.2",
            ),
        ),
    ),
}
