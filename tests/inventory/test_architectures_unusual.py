"""Models of unknown families that common spellings do not fit at once: hybrids, stacked experts, wrapped layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cache

import pytest

from policyquant.inventory.architectures.common_spellings import kind_by_word
from policyquant.inventory.architectures.describe import Description, describe
from policyquant.inventory.layers import LayerSet, StoredModel
from policyquant.inventory.tensor_list import from_tensors
from tests.inventory.models import NAMES, case
from tests.inventory.unusual_models import UNUSUAL

# Model, checkpoint template: (kind, canonical names of the parts), and * where the parts belong to a fused group.
TABLE = [
    # Experts stacked in 3-D right inside the mixture, shared experts called otherwise.
    ("Step-3.5", "model.layers.#.moe.gate_proj", "moe", "decoder.#.moe.experts.gate_proj*"),
    ("Step-3.5", "model.layers.#.moe.down_proj", "moe", "decoder.#.moe.experts.down_proj"),
    ("Step-3.5", "model.layers.#.moe.act_fn", "activation", "decoder.#.moe.experts.act"),
    ("Step-3.5", "model.layers.#.moe.gate", "router", "decoder.#.moe.router"),
    ("Step-3.5", "model.layers.#.moe", "router", "decoder.#.moe.router_correction"),
    ("Step-3.5", "model.layers.#.share_expert.up_proj", "linear", "decoder.#.moe.shared_experts.up_proj*"),
    ("JetMoE", "model.layers.#.mlp.input_linear", "moe", "decoder.#.moe.experts.gate_up_proj"),
    ("JetMoE", "model.layers.#.mlp.router.layer", "router", "decoder.#.moe.router"),
    (
        "JetMoE",
        "model.layers.#.self_attention.experts.router.layer",
        "router",
        "decoder.#.attention.experts.router.layer",
    ),
    (
        "JetMoE",
        "model.layers.#.self_attention.experts.input_linear",
        "moe",
        "decoder.#.attention.experts.input_linear",
    ),
    ("JetMoE", "model.layers.#.self_attention", "attention", "decoder.#.attention"),
    ("Qwen3-VL-MoE", "model.language_model.layers.#.mlp.experts.act_fn", "activation", "decoder.#.moe.experts.act"),
    ("LongCat", "model.layers.#.mlp.router", "router", "decoder.#.moe.router_correction"),
    ("LongCat", "model.layers.#.mlp.router.classifier", "router", "decoder.#.moe.router"),
    (
        "LongCat",
        "model.layers.#.self_attn.#.kv_a_proj_with_mqa",
        "linear",
        "decoder.#.attention.#.kv_a_proj_with_mqa",
    ),
    ("LongCat", "model.layers.#.input_layernorm.#", "norm", "decoder.#.input_layernorm.#"),
    # A decoder called text_model.
    ("Idefics3", "model.text_model.layers.#.self_attn.q_proj", "linear", "decoder.#.attention.q_proj*"),
    ("Idefics3", "model.vision_model.encoder.layers.#.mlp.fc1", "linear", "vision.#.mlp.up_proj"),
    # Blocks without modules for attention and MLP.
    (
        "Molmo",
        "model.transformer.blocks.#.att_proj",
        "linear",
        "decoder.#.attention.q_proj* decoder.#.attention.k_proj* decoder.#.attention.v_proj*",
    ),
    ("Molmo", "model.transformer.blocks.#.attn_out", "linear", "decoder.#.attention.o_proj"),
    ("Molmo", "model.transformer.blocks.#", "attention", "decoder.#.attention"),
    ("Molmo", "model.transformer.blocks.#.ff_out", "linear", "decoder.#.mlp.down_proj"),
    ("Molmo", "model.transformer.ff_out", "head", "head"),
    ("Molmo", "model.transformer.wte", "embedding", "embedding"),
    ("Molmo", "model.transformer.ln_f", "norm", "final_norm"),
    (
        "Kimi-VL",
        "vision_tower.encoder.blocks.#.wqkv",
        "linear",
        "vision.#.attention.q_proj* vision.#.attention.k_proj* vision.#.attention.v_proj*",
    ),
    ("Kimi-VL", "vision_tower.encoder.blocks.#.wo", "linear", "vision.#.attention.o_proj"),
    ("Kimi-VL", "vision_tower.encoder.blocks.#.mlp.fc0", "linear", "vision.#.mlp.up_proj"),
    ("Kimi-VL", "vision_tower.encoder.blocks.#.mlp.fc1", "linear", "vision.#.mlp.down_proj"),
    ("Kimi-VL", "vision_tower.encoder.blocks.#.norm1", "norm", "vision.#.post_attention_norm"),
    ("Kimi-VL", "vision_tower.patch_embed.pos_emb", "embedding", "vision.position_embedding"),
    # Linear attention is in no group.
    ("MiniMax-Text", "model.layers.#.self_attn.qkv_proj", "linear", "decoder.#.mixer.qkv_proj"),
    ("MiniMax-Text", "model.layers.#.self_attn.output_gate", "linear", "decoder.#.mixer.output_gate"),
    ("MiniMax-Text", "model.layers.#.self_attn.q_proj", "linear", "decoder.#.attention.q_proj*"),
    ("RWKV-7", "model.layers.#.attn.k_proj", "linear", "decoder.#.mixer.k_proj"),
    ("RWKV-7", "model.layers.#.attn", "other", "decoder.#.mixer"),
    ("Nemotron-H, with states", "backbone.layers.#.mixer.act_fn", "activation", "decoder.#.mlp.act"),
    (
        "PLaMo 2",
        "model.layers.layers.#.mixer.qkv_proj",
        "linear",
        "decoder.#.attention.q_proj* decoder.#.attention.k_proj* decoder.#.attention.v_proj*",
    ),
    # Heads, and what is none.
    ("ChatGLM", "transformer.output_layer", "head", "head"),
    ("Qwen2.5-Omni", "talker.codec_head", "head", "decoder.talker.head"),
    ("Qwen2.5-Omni", "talker.model.embed_tokens", "embedding", "decoder.talker.embedding"),
    ("Qwen2.5-Omni", "talker.model.layers.#.mlp.up_proj", "linear", "decoder.talker.#.mlp.up_proj*"),
    ("SigLIP", "text_model.head", "linear", "encoder.projection"),
    ("SigLIP", "vision_model.post_layernorm", "norm", "vision.final_norm"),
    ("SigLIP", "vision_model.head.layernorm", "norm", "vision.head.layernorm"),
    # What one word in the name does not tell.
    ("Gemma 3n", "model.embed_vision.embedding_projection", "linear", ""),
    ("Gemma 3n", "model.embed_vision.embedding", "embedding", "embed_vision.embedding"),
    ("Gemma 3n", "model.audio_tower.conformer.#.lconv1d.conv_norm", "norm", "audio.#.lconv1d.conv_norm"),
    ("Gemma 3n", "model.language_model.altup_projections.#", "linear", ""),
    ("ALBERT", "albert.encoder.embedding_hidden_mapping_in", "linear", ""),
    ("ALBERT", "albert.pooler", "linear", "pooler.proj"),
    ("ALBERT", "predictions.dense", "linear", "head_transform.proj"),
    (
        "ALBERT",
        "albert.encoder.albert_layer_groups.#.albert_layers.#.ffn_output",
        "linear",
        "encoder.#.#.mlp.down_proj",
    ),
    ("Fuyu", "vision_embed_tokens", "linear", "vision.patch_embedding"),
    ("GLM-4V", "model.visual.post_conv_layernorm", "norm", "vision.post_conv_layernorm"),
    # Other spellings, and wrappers.
    (
        "Phi-4-multimodal",
        "model.layers.#.self_attn.qkv_proj.base_layer",
        "linear",
        "decoder.#.attention.q_proj* decoder.#.attention.k_proj* decoder.#.attention.v_proj*",
    ),
    ("Phi-4-multimodal", "model.layers.#.mlp.down_proj.base_layer", "linear", "decoder.#.mlp.down_proj"),
    ("Phi-4-multimodal", "model.layers.#.mlp.act_fn", "activation", "decoder.#.mlp.act"),
    ("EXAONE 3", "transformer.h.#.mlp.c_fc_0", "linear", "decoder.#.mlp.gate_proj*"),
    ("EXAONE 3", "transformer.h.#.mlp.c_fc_1", "linear", "decoder.#.mlp.up_proj*"),
    ("OpenELM", "transformer.layers.#.ffn.proj_1", "linear", "decoder.#.mlp.gate_proj* decoder.#.mlp.up_proj*"),
    ("DINOv2-giant", "encoder.layer.#.mlp.weights_out", "linear", "vision.#.mlp.down_proj"),
    ("Apertus", "model.layers.#.mlp.act_fn", "activation", "decoder.#.mlp.act"),
    # One name for one thing.
    ("wav2vec 2.0", "wav2vec2.encoder.layers.#.attention.k_proj", "linear", "audio.#.attention.k_proj*"),
    ("wav2vec 2.0", "wav2vec2.encoder.layers.#.feed_forward.output_dense", "linear", "audio.#.mlp.down_proj"),
    (
        "wav2vec 2.0",
        "wav2vec2.feature_extractor.conv_layers.#.conv",
        "conv",
        "audio.feature_extractor.conv_layers.#.conv",
    ),
    ("wav2vec 2.0", "wav2vec2.encoder.layer_norm", "norm", "audio.final_norm"),
]


@cache
def unusual(name: str) -> Description:
    model = UNUSUAL[name]
    return describe(from_tensors([(tensor, None, None) for tensor in model.tensors], config=model.config))


def layers(description: Description, template: str) -> list[LayerSet]:
    return [layer for layer in description.sets if layer.name_template == template]


def places(description: Description, kind: str) -> dict[str, set[str]]:
    """Name → canonical names, of each layer of one kind."""
    return {
        layer.name(indices): {form.fill(indices) for form in layer.names["canonical"]}
        for layer in description.sets
        if layer.kind == kind
        for indices in layer.indices
    }


@pytest.mark.parametrize(("model", "template", "kind", "parts"), TABLE)
def test_unusual_models(model: str, template: str, kind: str, parts: str) -> None:
    found = [
        (layer.kind, {part.role + ("*" if part.group else "") for part in layer.parts})
        for layer in layers(unusual(model), template)
    ]
    assert found == [(kind, set(parts.split()) or {""})]


HYBRIDS = [
    ("Kimi-Linear", "model.layers.{}.self_attn", [2], [0, 1]),
    ("MiniMax-Text", "model.layers.{}.self_attn", [1], []),
    ("Nemotron-H, with states", "backbone.layers.{}.mixer", [1], [0]),
    ("PLaMo 2", "model.layers.layers.{}.mixer", [2], []),
    ("RWKV-7", "model.layers.{}.attn", [], [0, 1]),
]


@pytest.mark.parametrize(("model", "name", "softmax", "linear"), HYBRIDS)
def test_a_hybrid_has_a_kv_cache_where_it_has_softmax_attention(
    model: str, name: str, softmax: list[int], linear: list[int]
) -> None:
    """Modules of linear attention are layers only where they own parameters themselves."""
    caching = {layer.name(indices) for layer in unusual(model).sets if layer.has_kv_cache for indices in layer.indices}
    assert caching == {name.format(block) for block in softmax}
    mixers = {
        layer.name(indices)
        for layer in unusual(model).sets
        if layer.parts[0].role == "decoder.#.mixer"
        for indices in layer.indices
    }
    assert mixers == {name.format(block) for block in linear}


def test_blocks_of_a_hybrid_may_share_names_of_projections() -> None:
    """Kimi-Linear calls both the queries of linear attention and those of latent attention q_proj."""
    found = {
        layer.indices: (layer.kind, layer.parts[0].role)
        for layer in layers(unusual("Kimi-Linear"), "model.layers.#.self_attn.q_proj")
    }
    assert found == {
        ((0,), (1,)): ("linear", "decoder.#.mixer.q_proj"),
        ((2,),): ("linear", "decoder.#.attention.q_proj"),
    }


@pytest.mark.parametrize("model", ["Idefics3", "Molmo", "JetMoE", "Phi-4-multimodal"])
def test_a_decoder_keeps_a_kv_cache_in_every_block(model: str) -> None:
    caching = [indices for layer in unusual(model).sets if layer.has_kv_cache for indices in layer.indices]
    assert caching == [(0,), (1,)]


@pytest.mark.parametrize("model", UNUSUAL)
def test_no_two_layers_have_one_canonical_name(model: str) -> None:
    names = Counter(
        form.fill(indices)
        for layer in unusual(model).sets
        for form in layer.names["canonical"]
        if form.own and form.template
        for indices in layer.indices
        if len(indices) == form.template.count("#")  # Experts of their own share the name of all.
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_parts_of_a_wrapped_layer_are_named_inside_its_wrapper() -> None:
    (qkv,) = layers(unusual("Phi-4-multimodal"), "model.layers.#.self_attn.qkv_proj.base_layer")
    assert [part.names["checkpoint"][0].template for part in qkv.parts] == [
        f"model.layers.#.self_attn.{piece}_proj.base_layer" for piece in "qkv"
    ]


# --- shapes --------------------------------------------------------------------------------------------------------


def test_what_owns_no_matrix_has_no_weight() -> None:
    tensors = [
        ("model.layers.0.mlp.up_proj.weight", (8, 4), "BF16"),
        ("model.layers.0.mlp.down_proj.weight", (4,), "BF16"),
        ("model.layers.0.input_layernorm.weight", (4,), "BF16"),
        ("vision_model.embeddings.class_embedding", (4,), "BF16"),
        ("vision_model.encoder.layers.0.self_attn.q_proj.weight", (4, 4), "BF16"),
    ]
    described = {layer.name_template: layer for layer in describe(from_tensors(tensors)).sets}
    vector = described["model.layers.#.mlp.down_proj"]
    assert (vector.kind, vector.shape, vector.parts[0].shape) == ("linear", (), ())
    assert (vector.parameters, vector.weight_elements, vector.bytes, vector.weight_bytes) == (4, 0, 8, 0)
    bare = described["vision_model.embeddings"]
    assert (bare.kind, bare.shape, bare.parts[0].shape, bare.parameters) == ("embedding", (), (), 4)
    assert described["model.layers.#.input_layernorm"].shape == (4,)
    assert described["model.layers.#.mlp.up_proj"].parts[0].shape == (8, 4)


@pytest.mark.parametrize(
    ("name", "shape", "kind"),
    [
        ("vision_tower.stages.0.pwconv1", (8, 4), "linear"),
        ("vision_tower.stages.0.dwconv", (8, 1, 7, 7), "conv"),
        ("vision_tower.convs.0.proj", (8, 3, 7, 7), "conv"),
        ("vision_tower.out_proj", (8, 4), "linear"),
    ],
)
def test_a_shape_tells_convolutions_from_linear_layers(name: str, shape: tuple[int, ...], kind: str) -> None:
    (layer,) = describe(from_tensors([(f"{name}.weight", shape, "BF16")])).sets
    assert layer.kind == kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("embed_vision.embedding_projection", "linear"),
        ("encoder.embedding_hidden_mapping_in", "linear"),
        ("visual.post_conv_layernorm", "norm"),
        ("lconv1d.conv_norm", "norm"),
        ("blocks.bn1", "norm"),
        ("embeddings.emb_ln", "norm"),
        ("attention.kv_a_proj_with_mqa", "linear"),
        ("model.embed_tokens_per_layer", "embedding"),
        ("vision.conv_proj", "conv"),
        ("mystery", "other"),
    ],
)
def test_the_kind_that_a_word_tells(name: str, kind: str) -> None:
    parent, _, last = name.rpartition(".")
    assert kind_by_word(last, parent) == kind


# --- sources that list their modules ---------------------------------------------------------------------------------


def from_tree(names: Iterable[str], classes: dict[str, str]) -> Description:
    """A module tree: names of tensors, and classes of the modules that a test is about."""
    model = from_tensors([(name, None, None) for name in names], naming="module")
    return describe(StoredModel(model.name, model.source, {"model_type": "new"}, model.sets, "module", classes))


MLP = [f"model.layers.0.mlp.{name}.weight" for name in ("gate_proj", "up_proj", "down_proj")]
EXPERTS = [f"model.layers.0.mlp.experts.{name}" for name in ("gate_up_proj", "down_proj")]


@pytest.mark.parametrize(
    ("tensors", "name", "class_name", "place"),
    [
        (MLP, "model.layers.0.mlp.activation", "GELUTanh", "decoder.0.mlp.act"),
        (MLP, "model.layers.0.mlp.act", "QuickGELUActivation", "decoder.0.mlp.act"),
        (MLP, "model.layers.0.mlp.act_fn", "ReLU6", "decoder.0.mlp.act"),
        (EXPERTS, "model.layers.0.mlp.experts.act_fn", "SiLUActivation", "decoder.0.moe.experts.act"),
        (
            ["model.layers.0.mlp.shared_experts.down_proj.weight"],
            "model.layers.0.mlp.shared_experts.act",
            "SiLU",
            "decoder.0.moe.shared_experts.act",
        ),
        (
            ["model.multi_modal_projector.linear_1.weight", "model.multi_modal_projector.linear_2.weight"],
            "model.multi_modal_projector.act",
            "GELUActivation",
            "projector.act",
        ),
        (["model.layers.0.mamba.conv1d.weight"], "model.layers.0.mamba.act", "SiLU", "decoder.0.mixer.act"),
        (
            ["model.layers.0.self_attn.A_log", "model.layers.0.self_attn.q_proj.weight"],
            "model.layers.0.self_attn.act",
            "SiLU",
            "decoder.0.mixer.act",
        ),
        (
            ["cls.predictions.transform.dense.weight"],
            "cls.predictions.transform.transform_act_fn",
            "GELUActivation",
            "head_transform.act",
        ),
        (["pooler.dense.weight"], "pooler.activation", "Tanh", "pooler.act"),
        # Where the vocabulary has no place for it, its own name.
        (
            ["vision_model.encoder.layers.0.self_attn.q_proj.weight", "vision_model.head.mlp.fc1.weight"],
            "vision_model.head.mlp.activation_fn",
            "GELUTanh",
            "vision.head.mlp.activation_fn",
        ),
        (
            [f"visual.mergers.{number}.linear_fc{one}.weight" for number in (0, 1) for one in (1, 2)],
            "visual.mergers.1.act_fn",
            "GELU",
            "projector.1.act_fn",
        ),
    ],
)
def test_an_activation_has_the_name_that_its_module_has(
    tensors: list[str], name: str, class_name: str, place: str
) -> None:
    assert places(from_tree(tensors, {name: class_name}), "activation") == {name: {place}}


def test_a_tree_without_an_activation_gets_none() -> None:
    """gpt-oss and others compute it inside the experts."""
    described = from_tree(EXPERTS, {"model.layers.0.mlp.experts": "MyExperts"})
    assert places(described, "activation") == {}


def test_only_listed_activations_are_there() -> None:
    """MiniMax has one in the attention of some blocks only."""
    names = [f"model.layers.{block}.self_attn.{name}_proj.weight" for block in (0, 1) for name in "qkvo"]
    described = from_tree(names, {"model.layers.1.self_attn.act": "SiLU"})
    assert places(described, "activation") == {"model.layers.1.self_attn.act": {"decoder.1.self_attn.act"}}


def test_norms_without_a_weight_are_layers_where_the_source_lists_them() -> None:
    names = [f"model.layers.0.self_attn.{name}_proj.weight" for name in "qkvo"]
    classes = {
        "model.layers.0.self_attn.qk_norm": "Llama4TextL2Norm",
        "model.layers.0.input_layernorm": "OlmoLayerNorm",
        "model.layers.0.self_attn.q_proj.parametrizations.weight.0": "_WeightNorm",
    }
    assert places(from_tree(names, classes), "norm") == {
        "model.layers.0.self_attn.qk_norm": {"decoder.0.attention.qk_norm"},
        "model.layers.0.input_layernorm": {"decoder.0.input_norm"},
    }


@pytest.mark.parametrize("name", [name for name in NAMES if case(name)["v5_state_shapes"]])
def test_stacked_experts_have_an_activation_whatever_is_known(name: str) -> None:
    """A list of a module tree's tensors alone, as `Mixtral` of transformers v5 has them."""
    tensors = [(tensor, shape, "BF16") for tensor, shape in case(name)["v5_state_shapes"].items()]
    description = describe(from_tensors(tensors))
    roles = {part.role for layer in description.sets for part in layer.parts}
    experts = any(role.startswith("decoder.#.moe.experts.") for role in roles)
    assert ("decoder.#.moe.experts.act" in roles) == (experts and description.family != "gpt_oss")


def test_blocks_that_name_a_module_differently_have_one_each() -> None:
    names = [f"model.layers.{block}.{module}.q_proj.weight" for block, module in enumerate(("self_attn", "attention"))]
    for block, module in enumerate(("mlp", "feed_forward")):
        names += [f"model.layers.{block}.{module}.{each}_proj.weight" for each in ("up", "down")]
    description = describe(from_tensors([(name, None, None) for name in names]))
    assert places(description, "attention").keys() == {"model.layers.0.self_attn", "model.layers.1.attention"}
    assert places(description, "activation").keys() == {
        "model.layers.0.mlp.act_fn",
        "model.layers.1.feed_forward.act_fn",
    }
