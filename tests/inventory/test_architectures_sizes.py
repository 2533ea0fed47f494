"""Shapes and sizes of layers, against what the files themselves add up to."""

from __future__ import annotations

import pytest

from policyquant.inventory.architectures.describe import describe
from policyquant.inventory.layers import LayerSet, Part
from policyquant.inventory.tensor_list import from_tensors
from tests.inventory.models import NAMES, case, described, stored

# What the tensors hold besides parameters: scales, packing (which hides parameters), and GPT-2's causal masks.
QUANTIZED = {
    "DeepSeek-V3": 684_489_845_504,
    "Kimi-K2-Instruct": 1_026_408_232_448,
    "Qwen3-14B-MLX-4bit": 14_768_307_200,
    "Qwen3-8B-NVFP4": 8_190_735_360,
    "gpt-oss-120b": 116_829_156_672,
}
GPT_OSS_EXPERTS = [(128, 2880, 2880), (128, 5760, 2880)]
MASKS = {"gpt2": 12 * 1024 * 1024}


@pytest.mark.parametrize("name", NAMES)
def test_bytes_add_up_to_the_file(name: str) -> None:
    assert _total(name, "bytes") == case(name)["total_bytes"]


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_logical(name: str) -> None:
    expected = QUANTIZED.get(name, case(name)["numel"] - MASKS.get(name, 0))
    assert _total(name, "parameters") == expected


@pytest.mark.parametrize("name", NAMES)
def test_parts_hold_all_weights_of_their_layer(name: str) -> None:
    for layer in described(name).sets:
        if layer.kind in ("linear", "moe", "head", "router", "embedding") and layer.tensors and layer.shape:
            assert sum(_elements(part) for part in layer.parts) == layer.weight_elements


def _elements(part: Part) -> int:
    assert part.shape is not None
    result = max(1, part.repeats)
    for size in part.shape:
        result *= size
    return result


def _total(name: str, field: str) -> int:
    return sum(len(layer.indices) * getattr(layer, field) for layer in described(name).sets)


@pytest.mark.parametrize(
    ("model", "template", "shape", "parts", "transposed"),
    [
        # GPT-2's Conv1D: stored [in, out].
        ("gpt2", "h.#.attn.c_attn", (2304, 768), [(768, 768)] * 3, True),
        ("gpt2", "h.#.mlp.c_proj", (768, 3072), [(768, 3072)], True),
        ("Phi-3-mini-4k-instruct", "model.layers.#.self_attn.qkv_proj", (9216, 3072), [(3072, 3072)] * 3, False),
        ("Phi-3-mini-4k-instruct", "model.layers.#.mlp.gate_up_proj", (16384, 3072), [(8192, 3072)] * 2, False),
        ("Qwen2.5-VL-7B-Instruct", "visual.blocks.#.attn.qkv", (3840, 1280), [(1280, 1280)] * 3, False),
        ("gpt-oss-120b", "model.layers.#.mlp.experts", (128, 5760, 2880), GPT_OSS_EXPERTS, False),
        ("gemma-3-4b-it", "multi_modal_projector", (2560, 1152), [(2560, 1152)], True),
        ("Qwen3-8B-NVFP4", "model.layers.#.mlp.down_proj", (4096, 12288), [(4096, 12288)], False),
        ("Qwen3-14B-MLX-4bit", "model.layers.#.mlp.down_proj", (5120, 17408), [(5120, 17408)], False),
        ("bert-base-uncased", "bert.embeddings.LayerNorm", (768,), [(768,)], False),
        # Bare parameters, none of which is *the* weight.
        ("vit-base-patch16-224", "vit.embeddings", (), [()], False),
        ("Mamba-Codestral-7B-v0.1", "backbone.layers.#.mixer", (), [()], False),
    ],
)
def test_shapes(
    model: str, template: str, shape: tuple[int, ...], parts: list[tuple[int, ...]], transposed: bool
) -> None:
    layer = _layer(model, template)
    assert layer.shape == shape
    assert [part.shape for part in layer.parts] == parts
    assert layer.transposed is transposed


def test_expert_trees_in_bf16_are_turned_round() -> None:
    """gpt-oss modules hold [experts, in, out], its MXFP4 files [experts, out, in]."""
    tensors = [
        ("model.layers.0.mlp.experts.gate_up_proj", (4, 64, 256), "BF16"),
        ("model.layers.0.mlp.experts.gate_up_proj_bias", (4, 256), "BF16"),
        ("model.layers.0.mlp.experts.down_proj", (4, 128, 64), "BF16"),
    ]
    (layer, *_) = describe(from_tensors(tensors, config={"model_type": "gpt_oss"}, naming="module")).sets
    assert {part.role.rpartition(".")[2]: part.shape for part in layer.parts} == {
        "gate_up_proj": (4, 256, 64),
        "down_proj": (4, 64, 128),
    }
    assert layer.transposed


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}, [4096, 1024, 1024]),
        ({"num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 256}, [4096, 1024, 1024]),
        ({}, [None, None, None]),
        # Numbers that do not add up to what is stored say nothing.
        ({"num_attention_heads": 32, "num_key_value_heads": 32, "hidden_size": 4096}, [None, None, None]),
    ],
)
def test_shapes_of_fused_grouped_query_attention(config: dict[str, int], expected: list[int | None]) -> None:
    tensors = [("model.layers.0.self_attn.qkv_proj.weight", (6144, 4096), "BF16")]
    description = describe(from_tensors(tensors, config={"model_type": "phi3", **config}))
    (layer,) = (each for each in description.sets if each.kind == "linear")
    assert [part.shape[0] if part.shape else None for part in layer.parts] == expected


@pytest.mark.parametrize("name", NAMES)
def test_all_but_sizes_is_known_without_shapes(name: str) -> None:
    tensors = [(tensor, None, None) for tensor in case(name)["tensors"]]
    alone = describe(from_tensors(tensors, config=stored(name).config, naming="checkpoint"))
    told = described(name)
    assert [_facts(layer) for layer in _sorted(alone.sets)] == [_facts(layer) for layer in _sorted(told.sets)]
    assert all(layer.bytes is None for layer in alone.sets if layer.tensors)


def _sorted(sets: tuple[LayerSet, ...]) -> list[LayerSet]:
    return sorted(sets, key=lambda layer: (layer.name_template, layer.indices[0]))


def _facts(layer: LayerSet) -> object:
    return (
        layer.name_template,
        layer.indices,
        layer.kind,
        layer.tied_to,
        layer.feeds,
        [(part.role, part.group, part.names) for part in layer.parts],
    )


def _layer(model: str, template: str) -> LayerSet:
    return next(layer for layer in described(model).sets if layer.name_template == template)
