"""Small models of transformers' own classes, with the layers of the large ones."""

from __future__ import annotations

from typing import Any, Final

_TEXT: Final[dict[str, Any]] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
_VISION: Final[dict[str, Any]] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
_ROUTED: Final[dict[str, Any]] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_LATENT: Final[dict[str, Any]] = {
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "n_group": 2,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
}
_BERT: Final[dict[str, Any]] = {key: _TEXT[key] for key in list(_TEXT)[:5]}

Model = tuple[str, str, dict[str, Any]]
"""Configuration class, model class, arguments of the configuration."""

OF_FAMILIES: Final[dict[str, Model]] = {
    "Llama": ("LlamaConfig", "LlamaForCausalLM", _TEXT),
    "Llama, tied": ("LlamaConfig", "LlamaForCausalLM", _TEXT | {"tie_word_embeddings": True}),
    "Mistral": ("MistralConfig", "MistralForCausalLM", _TEXT),
    "Qwen2": ("Qwen2Config", "Qwen2ForCausalLM", _TEXT),
    "Qwen3": ("Qwen3Config", "Qwen3ForCausalLM", _TEXT),
    "Mixtral": ("MixtralConfig", "MixtralForCausalLM", _TEXT | {"num_local_experts": 4}),
    "Qwen2-MoE": (
        "Qwen2MoeConfig",
        "Qwen2MoeForCausalLM",
        _TEXT | _ROUTED | {"shared_expert_intermediate_size": 48},
    ),
    "Qwen3-MoE": ("Qwen3MoeConfig", "Qwen3MoeForCausalLM", _TEXT | _ROUTED),
    "DeepSeek-V3": (
        "DeepseekV3Config",
        "DeepseekV3ForCausalLM",
        _TEXT | _LATENT | {"q_lora_rank": 24},
    ),
    "DeepSeek-V2-Lite": (
        "DeepseekV2Config",
        "DeepseekV2ForCausalLM",
        _TEXT | _LATENT | {"q_lora_rank": None, "topk_method": "greedy"},
    ),
    "gpt-oss": ("GptOssConfig", "GptOssForCausalLM", _TEXT | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "Phi-3": ("Phi3Config", "Phi3ForCausalLM", _TEXT),
    "Gemma 3, text": ("Gemma3TextConfig", "Gemma3ForCausalLM", _TEXT | {"tie_word_embeddings": True}),
    "Gemma 3": (
        "Gemma3Config",
        "Gemma3ForConditionalGeneration",
        {
            "text_config": _TEXT,
            "vision_config": _VISION | {"model_type": "siglip_vision_model", "vision_use_head": False},
            "mm_tokens_per_image": 4,
        },
    ),
    "Qwen2.5-VL": (
        "Qwen2_5_VLConfig",
        "Qwen2_5_VLForConditionalGeneration",
        {
            "text_config": _TEXT | {"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}},
            "vision_config": {
                "depth": 2,
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_heads": 2,
                "out_hidden_size": 64,
                "fullatt_block_indexes": [1],
            },
            "tie_word_embeddings": False,
        },
    ),
    "GPT-2": ("GPT2Config", "GPT2LMHeadModel", {"vocab_size": 128, "n_embd": 64, "n_layer": 2, "n_head": 4}),
    "OPT": (
        "OPTConfig",
        "OPTForCausalLM",
        {
            "vocab_size": 128,
            "hidden_size": 64,
            "ffn_dim": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "word_embed_proj_dim": 64,
        },
    ),
    "BERT": ("BertConfig", "BertForPreTraining", _BERT),
    "T5": (
        "T5Config",
        "T5ForConditionalGeneration",
        {"vocab_size": 128, "d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4},
    ),
    "T5 v1.1": (
        "T5Config",
        "T5ForConditionalGeneration",
        {
            "vocab_size": 128,
            "d_model": 64,
            "d_kv": 16,
            "d_ff": 96,
            "num_layers": 2,
            "num_heads": 4,
            "feed_forward_proj": "gated-gelu",
            "tie_word_embeddings": False,
        },
    ),
    "ViT": ("ViTConfig", "ViTForImageClassification", _VISION),
    "Mamba-2": (
        "Mamba2Config",
        "Mamba2ForCausalLM",
        {
            "vocab_size": 128,
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_heads": 8,
            "head_dim": 16,
            "state_size": 16,
            "n_groups": 2,
        },
    ),
}
"""Of families that have data of their own."""

OTHERS: Final[dict[str, Model]] = {
    "OLMo-2": ("Olmo2Config", "Olmo2ForCausalLM", _TEXT),
    "GraniteMoE": ("GraniteMoeConfig", "GraniteMoeForCausalLM", _TEXT | {"num_local_experts": 4}),
    "GPT-NeoX": ("GPTNeoXConfig", "GPTNeoXForCausalLM", _BERT),
    "ModernBERT": ("ModernBertConfig", "ModernBertForMaskedLM", _BERT | {"pad_token_id": 0}),
    "Whisper": (
        "WhisperConfig",
        "WhisperForConditionalGeneration",
        {
            "vocab_size": 128,
            "d_model": 64,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 96,
            "decoder_ffn_dim": 96,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
    ),
    "GLM-4.5": (
        "Glm4MoeConfig",
        "Glm4MoeForCausalLM",
        _TEXT
        | {
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "first_k_dense_replace": 1,
        },
    ),
    "BART": (
        "BartConfig",
        "BartForConditionalGeneration",
        {
            "vocab_size": 128,
            "d_model": 64,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_ffn_dim": 96,
            "decoder_ffn_dim": 96,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
        },
    ),
    "BLOOM": ("BloomConfig", "BloomForCausalLM", {"vocab_size": 128, "hidden_size": 64, "n_layer": 2, "n_head": 4}),
    "CLIP": (
        "CLIPConfig",
        "CLIPModel",
        {"text_config": _BERT | {"projection_dim": 32}, "vision_config": _VISION},
    ),
    "Cohere": ("CohereConfig", "CohereForCausalLM", _TEXT),
    "DINOv2": ("Dinov2Config", "Dinov2Model", _VISION | {"mlp_ratio": 2}),
    "DistilBERT": (
        "DistilBertConfig",
        "DistilBertForMaskedLM",
        {"vocab_size": 128, "dim": 64, "hidden_dim": 96, "n_layers": 2, "n_heads": 4},
    ),
    "ERNIE-4.5": (
        "Ernie4_5_MoeConfig",
        "Ernie4_5_MoeForCausalLM",
        _TEXT
        | {
            "moe_num_experts": 4,
            "moe_k": 2,
            "moe_intermediate_size": 32,
            "moe_num_shared_experts": 1,
            "moe_layer_start_index": 1,
        },
    ),
    "Falcon": (
        "FalconConfig",
        "FalconForCausalLM",
        {"vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
    ),
    "Falcon-H1": (
        "FalconH1Config",
        "FalconH1ForCausalLM",
        _TEXT | {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16},
    ),
    "Gemma 2": ("Gemma2Config", "Gemma2ForCausalLM", _TEXT),
    "GLM-4": ("Glm4Config", "Glm4ForCausalLM", _TEXT),
    "GPT-J": (
        "GPTJConfig",
        "GPTJForCausalLM",
        {"vocab_size": 128, "n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 8},
    ),
    "LLaVA": (
        "LlavaConfig",
        "LlavaForConditionalGeneration",
        {
            "text_config": _TEXT | {"model_type": "llama"},
            "vision_config": _VISION | {"model_type": "clip_vision_model"},
        },
    ),
    "Mamba": ("MambaConfig", "MambaForCausalLM", {"vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2}),
    "MPT": ("MptConfig", "MptForCausalLM", {"vocab_size": 128, "d_model": 64, "n_layers": 2, "n_heads": 4}),
    "Nemotron": ("NemotronConfig", "NemotronForCausalLM", _TEXT),
    "OLMoE": ("OlmoeConfig", "OlmoeForCausalLM", _TEXT | {"num_experts": 4}),
    "Phi-3.5-MoE": ("PhimoeConfig", "PhimoeForCausalLM", _TEXT | {"num_local_experts": 4}),
    "Qwen3-Next": (
        "Qwen3NextConfig",
        "Qwen3NextForCausalLM",
        _TEXT
        | _ROUTED
        | {
            "shared_expert_intermediate_size": 48,
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "layer_types": ["linear_attention", "full_attention"],
        },
    ),
    "RoBERTa": ("RobertaConfig", "RobertaForMaskedLM", _BERT | {"pad_token_id": 0}),
    "StarCoder2": ("Starcoder2Config", "Starcoder2ForCausalLM", _TEXT),
    "Swin": (
        "SwinConfig",
        "SwinForImageClassification",
        {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4},
    ),
}
"""Of families without, for which common spellings must do."""

MODELS: Final = OF_FAMILIES | OTHERS


def build(name: str) -> Any:
    """The model, on the device that is the default at the moment."""
    import transformers

    config_class, model_class, arguments = MODELS[name]
    config = getattr(transformers, config_class)(**arguments)
    config.architectures = [model_class]
    return getattr(transformers, model_class)(config)
