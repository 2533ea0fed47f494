"""Tiny configs of every family, with what sets each apart, and models of them with random weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from policyquant.models.decoder import DecoderForCausalLM
from policyquant.models.families import model_factory

_SIZES: Mapping[str, Any] = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_EXPERTS: Mapping[str, Any] = {"num_experts_per_tok": 2}

CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "llama": {"model_type": "llama", **_SIZES},
    "llama, every head its own keys": {"model_type": "llama", **_SIZES, "num_key_value_heads": None},
    "llama, biases": {"model_type": "llama", **_SIZES, "attention_bias": True, "mlp_bias": True},
    "llama, tied": {"model_type": "llama", **_SIZES, "tie_word_embeddings": True},
    "llama, heads wider than hidden": {"model_type": "llama", **_SIZES, "head_dim": 16},
    "llama, linear rope": {
        "model_type": "llama",
        **_SIZES,
        "rope_theta": 5e5,
        "rope_scaling": {"type": "linear", "factor": 4.0},
    },
    "llama, llama3 rope": {
        "model_type": "llama",
        **_SIZES,
        "rope_theta": 5e5,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "llama, yarn rope": {
        "model_type": "llama",
        **_SIZES,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "mistral": {"model_type": "mistral", **_SIZES, "sliding_window": None},
    "mistral, sliding window": {"model_type": "mistral", **_SIZES, "sliding_window": 5},
    "qwen2": {"model_type": "qwen2", **_SIZES},
    "qwen2, sliding window from layer 1": {
        "model_type": "qwen2",
        **_SIZES,
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 1,
    },
    "qwen3": {"model_type": "qwen3", **_SIZES, "head_dim": 16, "tie_word_embeddings": True},
    "qwen3, biases": {"model_type": "qwen3", **_SIZES, "head_dim": 16, "attention_bias": True},
    "mixtral": {"model_type": "mixtral", **_SIZES, **_EXPERTS, "num_local_experts": 4, "sliding_window": 6},
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        **_SIZES,
        **_EXPERTS,
        "head_dim": 16,
        "num_experts": 6,
        "moe_intermediate_size": 24,
        "norm_topk_prob": True,
        "use_sliding_window": True,
        "sliding_window": 5,
    },
    "qwen3_moe, a dense layer": {
        "model_type": "qwen3_moe",
        **_SIZES,
        **_EXPERTS,
        "head_dim": 16,
        "num_experts": 6,
        "moe_intermediate_size": 24,
        "mlp_only_layers": [1],
    },
}


def fill(model: torch.nn.Module, seed: int = 0) -> None:
    """Random weights under which activations keep a size near 1 and every weight matters for the logits.

    Embeddings are smaller, or a tied head would always find the token that was read last.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            drawn = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:
                parameter.copy_(0.2 * drawn + (1.0 if "norm" in name else 0.0))
            else:
                parameter.copy_(0.3 * drawn if "embed" in name else drawn / parameter.shape[-1] ** 0.5)


def tiny_model(name: str, seed: int = 0) -> DecoderForCausalLM:
    """A float32 model of `CONFIGS[name]` with random weights."""
    model = model_factory(CONFIGS[name])()
    assert isinstance(model, DecoderForCausalLM)
    fill(model, seed)
    return model.eval()
