"""Layers that share a tensor: what the configuration says, what a family does by default, what a tree really has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from policyquant.inventory.architectures.describe import describe
from policyquant.inventory.layers import LayerSet, StoredModel
from policyquant.inventory.tensor_list import from_tensors
from tests.inventory.models import described, stored

EMBEDDING = ("model.embed_tokens.weight", (256, 64), "BF16")
HEAD = ("lm_head.weight", (256, 64), "BF16")
BLOCK = ("model.layers.0.self_attn.q_proj.weight", (64, 64), "BF16")
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}


@pytest.mark.parametrize(
    ("model", "tied"),
    [
        ("SmolLM2-135M", {"lm_head": "model.embed_tokens"}),
        ("Qwen3-1.7B", {"lm_head": "model.embed_tokens"}),
        ("gemma-3-4b-it", {"lm_head": "language_model.model.embed_tokens"}),
        ("gpt2", {"lm_head": "wte"}),
        ("opt-125m", {"lm_head": "model.decoder.embed_tokens"}),
        ("bert-base-uncased", {"cls.predictions.decoder": "bert.embeddings.word_embeddings"}),
        ("t5-small", {"encoder.embed_tokens": "shared", "decoder.embed_tokens": "shared", "lm_head": "shared"}),
        ("Meta-Llama-3-8B", {}),
        ("DeepSeek-V3", {}),
        ("vit-base-patch16-224", {}),
    ],
)
def test_ties_of_real_models(model: str, tied: dict[str, str]) -> None:
    layers = [layer for layer in described(model).sets if layer.tied_to]
    assert {layer.name_template: layer.tied_to for layer in layers} == tied
    for layer in layers:
        assert (layer.bytes, layer.parameters, layer.weight_elements, layer.tensors) == (0, 0, 0, ())
        owner = next(each for each in described(model).sets if each.name_template == layer.tied_to)
        assert layer.shape == owner.shape


def test_a_stored_head_that_should_be_tied_is_its_own() -> None:
    model = from_tensors([EMBEDDING, HEAD, BLOCK], config=LLAMA | {"tie_word_embeddings": True}, naming="checkpoint")
    description = describe(model)
    assert _tied(description.sets) == {}
    (finding,) = description.findings
    assert (finding.code, finding.level) == ("PQ451", "warning")
    assert finding.layers == ("lm_head", "model.embed_tokens")


def test_the_same_list_from_a_tree_is_tied() -> None:
    model = from_tensors([EMBEDDING, HEAD, BLOCK], config=LLAMA | {"tie_word_embeddings": True}, naming="module")
    description = describe(model)
    assert _tied(description.sets) == {"lm_head": "model.embed_tokens"}
    assert description.findings == ()


def test_a_head_without_its_embedding_stores_for_both() -> None:
    model = from_tensors([HEAD, BLOCK], config=LLAMA | {"tie_word_embeddings": True})
    assert _tied(describe(model).sets) == {"model.embed_tokens": "lm_head"}


@pytest.mark.parametrize(
    ("config", "has_head"),
    [
        ({"tie_word_embeddings": True}, True),
        ({"text_config": {"tie_word_embeddings": True}}, True),
        ({"tie_word_embeddings": False}, False),
        ({}, False),
        # A bare model, saved to embed texts: nothing predicts words.
        ({"tie_word_embeddings": True, "architectures": ["LlamaModel"]}, False),
        ({"tie_word_embeddings": True, "architectures": ["LlamaForSequenceClassification"]}, False),
    ],
)
def test_whether_a_head_that_is_not_stored_exists(config: dict[str, object], has_head: bool) -> None:
    sets = describe(from_tensors([EMBEDDING, BLOCK], config=LLAMA | config)).sets
    assert any(layer.kind == "head" for layer in sets) is has_head


def test_a_head_that_stores_its_bias_alone_is_tied() -> None:
    tensors = [
        ("bert.embeddings.word_embeddings.weight", (256, 64), "F32"),
        ("bert.encoder.layer.0.attention.self.query.weight", (64, 64), "F32"),
        ("cls.predictions.bias", (256,), "F32"),
        ("cls.predictions.decoder.bias", (256,), "F32"),
    ]
    sets = describe(from_tensors(tensors, config={"model_type": "bert"})).sets
    (head,) = (layer for layer in sets if layer.tied_to)
    assert (head.name_template, head.tied_to) == ("cls.predictions.decoder", "bert.embeddings.word_embeddings")
    assert (head.kind, head.shape, head.bytes) == ("head", (256, 64), 1024)


def test_a_tree_knows_what_it_shares() -> None:
    """Its configuration may say otherwise, and any two layers may share, not only head and embedding."""
    tree = _tree(
        {
            "model.embed_tokens.weight": (256, 64),
            "lm_head.weight": (256, 64),
            "model.layers.0.mlp.up_proj.weight": (64, 64),
            "model.layers.1.mlp.up_proj.weight": (64, 64),
            "model.layers.2.mlp.up_proj.weight": (64, 64),
        }
    )
    assert _tied(describe(tree).sets) == {}
    shared = {
        "lm_head.weight": "model.embed_tokens.weight",
        "model.layers.2.mlp.up_proj.weight": "model.layers.1.mlp.up_proj.weight",
    }
    sets = describe(replace(tree, shared=shared)).sets
    tied = {layer.name(layer.indices[0]): layer.tied_to for layer in sets if layer.tied_to}
    assert tied == {"lm_head": "model.embed_tokens", "model.layers.2.mlp.up_proj": "model.layers.1.mlp.up_proj"}
    assert sum(len(layer.indices) * (layer.bytes or 0) for layer in sets) == 2 * (256 * 64 + 2 * 64 * 64)


def _tree(shapes: dict[str, tuple[int, ...]]) -> StoredModel:
    config = LLAMA | {"tie_word_embeddings": True}
    model = from_tensors([(name, shape, "BF16") for name, shape in shapes.items()], config=config, naming="module")
    return replace(model, module_types={"lm_head": "Linear"})


def _tied(sets: tuple[LayerSet, ...]) -> dict[str, str]:
    return {layer.name_template: layer.tied_to for layer in sets if layer.tied_to}


def test_describing_leaves_the_source_alone() -> None:
    model = stored("t5-small")
    before = model.sets
    describe(model)
    assert model.sets == before
