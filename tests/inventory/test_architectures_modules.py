"""The module namespace against the trees that transformers v5 builds, and the same model read both ways."""

from __future__ import annotations

from typing import Any

import pytest

from policyquant.inventory.architectures.describe import Description, describe
from policyquant.inventory.collapse import template_of
from policyquant.inventory.layers import LayerSet, Part
from policyquant.inventory.tensor_list import from_tensors
from tests.inventory.models import NAMES, case, described, members, stored

TREES = [name for name in NAMES if case(name)["v5_state_shapes"]]

# Ends of class names of modules that are layers. Containers, dropout and rotary tables are none.
LAYER_CLASSES = (
    "Linear",
    "Conv1D",
    "Conv2d",
    "Conv3d",
    "Embedding",
    "Norm",
    "NormGated",
    "Activation",
    "ReLU",
    "GELU",
    "GELUTanh",
    "Tanh",
    "Router",
    "Experts",
    "Attention",
    "Mixer",
)
NO_LAYERS = ("RotaryEmbedding", "BertAttention", "T5LayerSelfAttention", "T5LayerCrossAttention")


def _from_tree(name: str) -> Description:
    tensors = [(tensor, shape, "BF16") for tensor, shape in case(name)["v5_state_shapes"].items()]
    return describe(from_tensors(tensors, config=stored(name).config, naming="module"))


def _module_names(layer: LayerSet) -> set[str]:
    forms = {form for part in layer.parts for form in part.names["module"]} | {layer.names["module"][0]}
    return {form.fill(indices) for form in forms for indices in layer.indices}


@pytest.mark.parametrize("name", TREES)
def test_own_module_names_exist_in_the_tree(name: str) -> None:
    tree = set(case(name)["v5_module_types"]) | set(case(name)["v5_state_shapes"])
    for layer in described(name).sets:
        if not layer.prediction:
            # Own names of parts of fused layers (`attn.q_proj`) are no modules; those of the layer itself are.
            form = layer.names["module"][0]
            assert {form.fill(indices) for indices in layer.indices} <= tree


@pytest.mark.parametrize("name", TREES)
def test_every_layer_of_the_tree_is_reached(name: str) -> None:
    reached = {each for layer in described(name).sets for each in _module_names(layer)}
    layers = {
        module
        for module, class_name in case(name)["v5_module_types"].items()
        if class_name.endswith(LAYER_CLASSES) and not class_name.endswith(NO_LAYERS)
    }
    assert len(layers) > 10
    assert layers <= reached


@pytest.mark.parametrize("name", TREES)
def test_one_model_read_from_its_tree_has_the_same_parts(name: str) -> None:
    checkpoint, tree = _rows(described(name)), _rows(_from_tree(name))
    assert tree.keys() == checkpoint.keys()
    for part, row in checkpoint.items():
        assert tree[part] == row


def _rows(description: Description) -> dict[str, Any]:
    """What a policy can tell of each part's first and last member, by its checkpoint name."""
    rows = {}
    for layer in description.sets:
        if layer.prediction:
            continue  # transformers v5 does not build them.
        for part in layer.parts:
            for indices in (members(part, layer)[0], members(part, layer)[-1]):
                names = {space: [(f.fill(indices), f.own) for f in forms] for space, forms in part.names.items()}
                rows[names["checkpoint"][0][0]] = {
                    "kind": layer.kind,
                    "role": part.role,
                    "names": names,
                    "shape": part.shape,
                    "group": part.group,
                    "caches": layer.has_kv_cache,
                    "tied": layer.tied_to,
                }
    return rows


def test_experts_held_together_have_the_names_of_single_experts() -> None:
    layer = _layer(_from_tree("Mixtral-8x7B-v0.1"), "model.layers.#.block_sparse_moe.experts")
    assert layer.kind == "moe"
    assert [(part.role, part.repeats, part.shape) for part in layer.parts] == [
        ("decoder.#.moe.experts.down_proj", 8, (4096, 14336)),
        ("decoder.#.moe.experts.gate_proj", 8, (14336, 4096)),
        ("decoder.#.moe.experts.up_proj", 8, (14336, 4096)),
    ]
    assert _names(layer.parts[1], "checkpoint", (3, 7)) == [
        "model.layers.3.block_sparse_moe.experts.7.w1",
        "model.layers.3.block_sparse_moe.experts.7.gate_up_proj",
    ]


def test_a_tree_of_single_experts_keeps_its_own_names_too() -> None:
    tensors = [
        (f"model.layers.0.block_sparse_moe.experts.{expert}.{projection}.weight", (64, 64), "BF16")
        for expert in range(2)
        for projection in ("w1", "w2", "w3")
    ]
    model = from_tensors(tensors, config={"model_type": "mixtral"}, naming="module")
    layer = _layer(describe(model), "model.layers.#.block_sparse_moe.experts.#.w1")
    assert _names(layer.parts[0], "module", (0, 1)) == [
        "model.layers.0.block_sparse_moe.experts.1.w1",
        "model.layers.0.mlp.experts.gate_up_proj",
        "model.layers.0.block_sparse_moe.experts.1.gate_up_proj",
        "model.layers.0.mlp.experts",
    ]


@pytest.mark.parametrize(
    ("model", "template", "namespace", "names"),
    [
        (
            "Mixtral-8x7B-v0.1",
            "model.layers.#.block_sparse_moe.experts.#.w3",
            "module",
            ["model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.experts"],
        ),
        (
            "Mixtral-8x7B-v0.1",
            "model.layers.#.block_sparse_moe.experts.#.w2",
            "canonical",
            ["decoder.0.moe.experts.down_proj", "decoder.0.moe.experts"],
        ),
        (
            "Mixtral-8x7B-v0.1",
            "model.layers.#.self_attn.k_proj",
            "checkpoint",
            ["model.layers.0.self_attn.k_proj", "model.layers.0.self_attn.qkv_proj"],
        ),
        # Stored fused: its own name, that of what stores it, and the field's.
        (
            "Qwen2.5-VL-7B-Instruct",
            "visual.blocks.#.attn.qkv",
            "checkpoint",
            ["visual.blocks.0.attn.q_proj", "visual.blocks.0.attn.qkv", "visual.blocks.0.attn.qkv_proj"],
        ),
        (
            "gpt2",
            "h.#.attn.c_attn",
            "module",
            ["transformer.h.0.attn.q_proj", "transformer.h.0.attn.c_attn", "transformer.h.0.attn.qkv_proj"],
        ),
        (
            "Phi-3-mini-4k-instruct",
            "model.layers.#.mlp.gate_up_proj",
            "canonical",
            ["decoder.0.mlp.gate_proj", "decoder.0.mlp.gate_up_proj"],
        ),
        # Latent attention has the fused name in the canonical namespace only; so has cross-attention.
        (
            "DeepSeek-V3",
            "model.layers.#.self_attn.q_b_proj",
            "checkpoint",
            ["model.layers.0.self_attn.q_b_proj"],
        ),
        (
            "DeepSeek-V3",
            "model.layers.#.self_attn.q_b_proj",
            "canonical",
            ["decoder.0.attention.q_b_proj", "decoder.0.attention.qkv_proj"],
        ),
        (
            "t5-small",
            "decoder.block.#.layer.#.EncDecAttention.q",
            "checkpoint",
            ["decoder.block.0.layer.1.EncDecAttention.q"],
        ),
        (
            "t5-small",
            "decoder.block.#.layer.#.EncDecAttention.q",
            "canonical",
            ["decoder.0.cross_attention.q_proj", "decoder.0.cross_attention.qkv_proj"],
        ),
        # An MLP without a gate has nothing to fuse.
        ("opt-125m", "model.decoder.layers.#.fc1", "canonical", ["decoder.0.mlp.up_proj"]),
        (
            "gpt-oss-120b",
            "model.layers.#.mlp.experts",
            "canonical",
            ["decoder.0.moe.experts.down_proj", "decoder.0.moe.experts"],
        ),
    ],
)
def test_all_names_of_a_part(model: str, template: str, namespace: Any, names: list[str]) -> None:
    layer = _layer(described(model), template)
    assert _names(layer.parts[0], namespace, layer.indices[0]) == names


@pytest.mark.parametrize("name", TREES)
def test_names_belong_to_a_tree_or_a_checkpoint_by_themselves(name: str) -> None:
    """Where the two differ, a plain list of tensors is told apart; GPT-2 with its prefix is found in both."""
    tensors = [(tensor, shape, None) for tensor, shape in case(name)["v5_state_shapes"].items()]
    config = stored(name).config
    differ = {template_of(n)[0] for n in case(name)["tensors"]} != {template_of(n)[0] for n, *_ in tensors}
    expected = "module" if differ and name in WITH_OTHER_MODULE_NAMES else "checkpoint"
    assert from_tensors(tensors, config=config).naming == expected
    of_checkpoint = [(tensor, shape, dtype) for tensor, (dtype, shape) in case(name)["tensors"].items()]
    assert from_tensors(of_checkpoint[:5000], config=config).naming == "checkpoint"


WITH_OTHER_MODULE_NAMES = {
    "DeepSeek-V3",
    "Kimi-K2-Instruct",
    "Mixtral-8x7B-v0.1",
    "Qwen2.5-VL-7B-Instruct",
    "Qwen3-235B-A22B",
    "Qwen3-30B-A3B",
    "WizardLM-2-8x22B",
    "gemma-3-4b-it",
    "vit-base-patch16-224",
}


def _layer(description: Description, template: str) -> LayerSet:
    return next(layer for layer in description.sets if layer.name_template == template)


def _names(part: Part, namespace: Any, indices: tuple[int, ...]) -> list[str]:
    return [form.fill(indices) for form in part.names[namespace]]
