"""Which layers read a layer's output: the basis for saying whether it may be emitted quantized."""

from __future__ import annotations

import pytest

from policyquant.inventory.architectures.describe import describe
from policyquant.inventory.layers import LayerSet
from policyquant.inventory.tensor_list import from_tensors
from tests.inventory.models import NAMES, described


def _readers(model: str, role: str) -> set[str] | None:
    layers = [layer for layer in described(model).sets if _role(layer) == role]
    assert layers
    (readers,) = {layer.feeds for layer in layers}
    return None if readers is None else {_short(reader) for reader in readers}


def _role(layer: LayerSet) -> str:
    return layer.names["canonical"][0].template


def _short(reader: str) -> str:
    return reader.replace("decoder.#.", "")


QKV = {"attention.q_proj", "attention.k_proj", "attention.v_proj"}
GATE_UP = {"mlp.gate_proj", "mlp.up_proj"}


@pytest.mark.parametrize(
    ("model", "role", "readers"),
    [
        ("Meta-Llama-3-8B", "decoder.#.input_norm", QKV),
        ("Meta-Llama-3-8B", "decoder.#.post_attention_norm", GATE_UP),
        ("Meta-Llama-3-8B", "decoder.#.mlp.act", {"mlp.down_proj"}),
        ("Meta-Llama-3-8B", "decoder.#.attention", {"attention.o_proj"}),
        ("Meta-Llama-3-8B", "final_norm", {"head"}),
        ("Meta-Llama-3-8B", "decoder.#.attention.q_proj", set()),
        ("Meta-Llama-3-8B", "decoder.#.mlp.down_proj", set()),
        ("Meta-Llama-3-8B", "embedding", set()),
        # Latent attention: the norm feeds both compressions, whose own norms feed the expansions.
        ("DeepSeek-V3", "decoder.#.input_norm", {"attention.q_a_proj", "attention.kv_a_proj"}),
        ("DeepSeek-V3", "decoder.#.attention.q_a_norm", {"attention.q_b_proj"}),
        ("DeepSeek-V3", "decoder.#.attention.kv_a_norm", {"attention.kv_b_proj"}),
        # The first three blocks are dense, the others have experts; readers that a block lacks do not count there.
        (
            "DeepSeek-V3",
            "decoder.#.post_attention_norm",
            GATE_UP
            | {f"moe.{where}.{x}_proj" for where in ("experts", "shared_experts") for x in ("gate", "up")}
            | {"moe.router"},
        ),
        ("DeepSeek-V3", "decoder.#.moe.experts.act", {"moe.experts.down_proj"}),
        # Concatenated before they are read.
        ("DeepSeek-V3", "mtp.#.hidden_norm", None),
        ("DeepSeek-V3", "mtp.#.final_norm", {"mtp.#.head"}),
        ("gpt-oss-120b", "decoder.#.post_attention_norm", {"moe.router", "moe.experts.gate_up_proj"}),
        # Gemma 3 norms both sides: the one behind attention feeds the residual stream.
        ("gemma-3-4b-it", "decoder.#.post_attention_norm", set()),
        ("gemma-3-4b-it", "decoder.#.pre_mlp_norm", GATE_UP),
        ("gemma-3-4b-it", "decoder.#.post_mlp_norm", set()),
        ("gemma-3-4b-it", "vision.#.post_attention_norm", {"vision.#.mlp.up_proj"}),
        ("gemma-3-4b-it", "projector.norm", {"projector"}),
        ("gpt2", "decoder.#.input_norm", QKV),
        ("gpt2", "decoder.#.post_attention_norm", {"mlp.up_proj"}),
        # BERT norms behind each half: the residual stream reads every norm too.
        ("bert-base-uncased", "encoder.#.post_attention_norm", None),
        ("bert-base-uncased", "encoder.#.mlp.act", {"encoder.#.mlp.down_proj"}),
        ("t5-small", "decoder.#.cross_attention_norm", {"cross_attention.q_proj"}),
        ("t5-small", "encoder.final_norm", None),
        ("Mamba-Codestral-7B-v0.1", "decoder.#.input_norm", {"mixer.in_proj"}),
        ("Mamba-Codestral-7B-v0.1", "decoder.#.mixer.norm", {"mixer.out_proj"}),
        ("vit-base-patch16-224", "vision.final_norm", {"head"}),
        # Four patches are put side by side between the two.
        ("Qwen2.5-VL-7B-Instruct", "projector.norm", None),
        ("Qwen2.5-VL-7B-Instruct", "projector.act", {"projector.linear_2"}),
    ],
)
def test_readers(model: str, role: str, readers: set[str] | None) -> None:
    assert _readers(model, role) == readers


@pytest.mark.parametrize("name", NAMES)
def test_readers_are_layers_of_the_model(name: str) -> None:
    roles = {part.role for layer in described(name).sets for part in layer.parts}
    for layer in described(name).sets:
        assert set(layer.feeds or ()) <= roles


@pytest.mark.parametrize(("before", "readers"), [(True, QKV), (False, None)])
def test_opt_350m_norms_behind(before: bool, readers: set[str] | None) -> None:
    names = ["self_attn_layer_norm", *(f"self_attn.{x}_proj" for x in "qkv")]
    tensors = [(f"model.decoder.layers.0.{name}.weight", None, None) for name in names]
    sets = describe(from_tensors(tensors, config={"model_type": "opt", "do_layer_norm_before": before})).sets
    (norm,) = (layer for layer in sets if layer.kind == "norm")
    assert (None if norm.feeds is None else {_short(reader) for reader in norm.feeds}) == readers
