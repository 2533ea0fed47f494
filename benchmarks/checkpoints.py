"""Checkpoints to build from: the names and shapes of a real model, or of a made-up one, with random BF16 values.

What building costs does not depend on the values, as long as they are ordinary numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any, Final

import torch

Shapes = Mapping[str, tuple[int, ...]]

_BLOCK_ELEMENTS: Final = 1 << 22
"""Values are drawn once and repeated: drawing gigabytes takes longer than building."""


def write_checkpoint(folder: Path, shapes: Shapes, config: Mapping[str, Any], shards: int = 1) -> int:
    """Write a directory as `save_pretrained` leaves it, and return the bytes of its tensors.

    Args:
        folder: Where; it is there.
        shapes: Name → shape of every tensor; all are BF16.
        config: The content of `config.json`.
        shards: Into how many files the tensors go, in the order given.
    """
    (folder / "config.json").write_text(json.dumps(dict(config)), encoding="utf-8")
    names = list(shapes)
    per_shard = -(-len(names) // shards)
    weight_map: dict[str, str] = {}
    block = torch.randn(_BLOCK_ELEMENTS, generator=torch.Generator().manual_seed(0)).mul_(0.02).bfloat16()
    values = memoryview(block.view(torch.uint8).numpy())
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors" if shards > 1 else "model.safetensors"
        own = names[number * per_shard : (number + 1) * per_shard]
        weight_map.update(dict.fromkeys(own, file))
        _write_file(folder / file, {name: shapes[name] for name in own}, values)
    total = sum(2 * prod(shape) for shape in shapes.values())
    if shards > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    return total


def _write_file(path: Path, shapes: Shapes, values: memoryview) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in shapes.values():
            left = 2 * prod(shape)
            while left:
                left -= file.write(values[:left])


def llama_config(**sizes: Any) -> dict[str, Any]:
    """The `config.json` of a Llama of these sizes."""
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", **sizes}


def llama_shapes(config: Mapping[str, Any]) -> Shapes:
    """Names and shapes of its tensors."""
    return dict(_decoder(config, _dense))


def mixtral_config(**sizes: Any) -> dict[str, Any]:
    """The `config.json` of a Mixtral of these sizes."""
    return {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "torch_dtype": "bfloat16", **sizes}


def mixtral_shapes(config: Mapping[str, Any]) -> Shapes:
    """Names and shapes of its tensors; experts are stored one by one."""
    return dict(_decoder(config, _experts))


def _decoder(config: Mapping[str, Any], feed_forward: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, heads, kv_heads = config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = hidden // heads
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for block in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{block}"
        for part, count in (("q_proj", heads), ("k_proj", kv_heads), ("v_proj", kv_heads)):
            yield f"{prefix}.self_attn.{part}.weight", (count * head_dim, hidden)
        yield f"{prefix}.self_attn.o_proj.weight", (hidden, heads * head_dim)
        yield from feed_forward(config, prefix)
        yield f"{prefix}.input_layernorm.weight", (hidden,)
        yield f"{prefix}.post_attention_layernorm.weight", (hidden,)
    yield "model.norm.weight", (hidden,)
    if not config.get("tie_word_embeddings"):
        yield "lm_head.weight", (config["vocab_size"], hidden)


def _dense(config: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    yield f"{prefix}.mlp.gate_proj.weight", (inner, hidden)
    yield f"{prefix}.mlp.up_proj.weight", (inner, hidden)
    yield f"{prefix}.mlp.down_proj.weight", (hidden, inner)


def _experts(config: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner, experts = config["hidden_size"], config["intermediate_size"], config["num_local_experts"]
    yield f"{prefix}.block_sparse_moe.gate.weight", (experts, hidden)
    for expert in range(experts):
        for part, shape in (("w1", (inner, hidden)), ("w3", (inner, hidden)), ("w2", (hidden, inner))):
            yield f"{prefix}.block_sparse_moe.experts.{expert}.{part}.weight", shape
