"""Models to measure on: real layouts shipped with the tests, and mixture-of-experts layouts of any size."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

DATA: Final = Path(__file__).parent.parent / "tests" / "data" / "models"
FORTY_RULES: Final = Path(__file__).parent / "forty_rules.yaml"
"""Fits DeepSeek-V3 and Kimi-K2."""


def model_path(name: str) -> Path:
    """The file that lists the tensors of one of the shipped models."""
    return DATA / f"{name}.json.gz"


def read_model(name: str) -> dict[str, Any]:
    """Names, dtypes and shapes of its tensors (`tensors`), and its `config`."""
    content: dict[str, Any] = json.loads(gzip.decompress(model_path(name).read_bytes()))
    return content


def index_text(name: str) -> str:
    """The text of a model's `model.safetensors.index.json`, laid out as `save_pretrained` writes it."""
    model = read_model(name)
    return index_of(model["tensors"], model["total_bytes"])


def index_of(tensors: Any, total_bytes: int, shards: int = 64) -> str:
    """An index of these tensors, which are spread over shards in the order given."""
    names = list(tensors)
    per_shard = -(-len(names) // shards)
    weight_map = {
        tensor: f"model-{position // per_shard + 1:05}-of-{shards:05}.safetensors"
        for position, tensor in enumerate(names)
    }
    return json.dumps({"metadata": {"total_size": total_bytes}, "weight_map": weight_map}, indent=2) + "\n"


def moe_config(blocks: int, experts: int) -> dict[str, object]:
    """A configuration as of Qwen3's mixture-of-experts models."""
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_hidden_layers": blocks,
        "num_experts": experts,
        "hidden_size": 256,
        "moe_intermediate_size": 128,
        "tie_word_embeddings": False,
    }


def moe_tensors(blocks: int, experts: int) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Name, shape and dtype of each tensor of such a model."""
    for block in range(blocks):
        prefix = f"model.layers.{block}"
        for projection, rows in (("q_proj", 256), ("k_proj", 128), ("v_proj", 128), ("o_proj", 256)):
            yield f"{prefix}.self_attn.{projection}.weight", (rows, 256), "BF16"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{prefix}.{norm}.weight", (256,), "BF16"
        yield f"{prefix}.mlp.gate.weight", (experts, 256), "BF16"
        for expert in range(experts):
            for projection, shape in (("gate_proj", (128, 256)), ("up_proj", (128, 256)), ("down_proj", (256, 128))):
                yield f"{prefix}.mlp.experts.{expert}.{projection}.weight", shape, "BF16"
    yield "model.embed_tokens.weight", (1024, 256), "BF16"
    yield "model.norm.weight", (256,), "BF16"
    yield "lm_head.weight", (1024, 256), "BF16"
