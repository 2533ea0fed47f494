"""Models of families without data of their own: kinds, places and groups from common spellings alone."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyquant.inventory.architectures.describe import Description, describe
from policyquant.inventory.layers import StoredModel
from policyquant.inventory.spans import spans
from policyquant.inventory.tensor_list import from_tensors
from tests.inventory.models import NAMES, case, described, stored
from tests.inventory.other_models import OTHERS
from tests.inventory.unusual_models import UNUSUAL

# What names alone do not tell, of the 25 models: {name: what differs}. Names of activations are not listed: a model
# that is not known may call them anything.
NOT_TOLD = {
    "gemma-3-4b-it": {
        "multi_modal_projector": "a bare parameter; nothing says that it is a linear layer's weight",
    },
    "vit-base-patch16-224": {
        "vit.encoder.layer.#.attention": "the module that transformers v5 calls so has another name in checkpoints",
        "vit.encoder.layer.#.attention.attention": "and this is it",
    },
}


# Names do not tell that stacked experts compute their activation themselves, without a module for it.
COMPUTED_INSIDE = {"gpt-oss-120b": {"decoder.#.moe.experts.act"}}


@pytest.mark.parametrize("name", NAMES)
def test_common_spellings_agree_with_the_data_of_families(name: str) -> None:
    model = stored(name)
    # As in the published config.json, of which some cases hold the numbers only.
    config = {**model.config, "architectures": [case(name)["architecture"]]}
    guessed = describe(_with_config(model, config), use_family=False)
    assert [finding.code for finding in guessed.findings][:1] == ["PQ452"]
    known, told = _rows(described(name)), _rows(guessed)
    differing = {key for key in known.keys() | told.keys() if known.get(key) != told.get(key)}
    assert differing == NOT_TOLD.get(name, {}).keys()


def _with_config(model: StoredModel, config: dict[str, Any]) -> StoredModel:
    return StoredModel(model.name, model.source, config, model.sets)


def _rows(description: Description) -> dict[str, Any]:
    """Kind, place, groups and ties of each template, activations not among them."""
    rows: dict[str, Any] = {}
    for layer in description.sets:
        if layer.kind == "activation":
            continue
        names = [
            (part.role, part.group, part.names["checkpoint"], part.names["canonical"], part.shape)
            for part in layer.parts
        ]
        rows.setdefault(layer.name_template, []).append(
            (layer.kind, layer.indices, names, layer.tied_to, layer.has_kv_cache, layer.prediction, layer.transposed)
        )
    return {template: sorted(found, key=repr) for template, found in rows.items()}


@pytest.mark.parametrize("name", NAMES)
def test_activations_are_found_where_they_belong(name: str) -> None:
    places = {
        canonical.template
        for layer in described(name).sets
        if layer.kind == "activation"
        for canonical in layer.names["canonical"]
    }
    guessed = {
        canonical.template
        for layer in describe(stored(name), use_family=False).sets
        if layer.kind == "activation"
        for canonical in layer.names["canonical"]
    }
    assert guessed - places == COMPUTED_INSIDE.get(name, set())
    # In blocks none but the mixer's is missed.
    assert {place for place in places - guessed if ".#." in place} <= {"decoder.#.mixer.act"}


# --- other families --------------------------------------------------------------------------------------------------

# Model, checkpoint template: (kind, canonical names of the parts), and * where the parts belong to a fused group.
TABLE = [
    ("OLMo-2", "model.layers.#.self_attn.q_proj", "linear", "decoder.#.attention.q_proj*"),
    ("OLMo-2", "model.layers.#.post_feedforward_layernorm", "norm", "decoder.#.post_mlp_norm"),
    ("OLMo-2", "model.layers.#.mlp.act_fn", "activation", "decoder.#.mlp.act"),
    (
        "InternLM2",
        "model.layers.#.attention.wqkv",
        "linear",
        "decoder.#.attention.q_proj* decoder.#.attention.k_proj* decoder.#.attention.v_proj*",
    ),
    ("InternLM2", "model.layers.#.feed_forward.w1", "linear", "decoder.#.mlp.gate_proj*"),
    ("InternLM2", "model.layers.#.feed_forward.w3", "linear", "decoder.#.mlp.up_proj*"),
    ("InternLM2", "model.layers.#.feed_forward.w2", "linear", "decoder.#.mlp.down_proj"),
    ("InternLM2", "model.layers.#.ffn_norm", "norm", "decoder.#.post_attention_norm"),
    ("InternLM2", "output", "head", "head"),
    # Projections of linear attention agree with nothing.
    ("Qwen3-Next", "model.layers.#.linear_attn.in_proj_qkvz", "linear", "decoder.#.mixer.in_proj_qkvz"),
    ("Qwen3-Next", "model.layers.#.linear_attn.in_proj_ba", "linear", "decoder.#.mixer.in_proj_ba"),
    ("Qwen3-Next", "model.layers.#.linear_attn.conv1d", "conv", "decoder.#.mixer.conv1d"),
    ("Qwen3-Next", "model.layers.#.linear_attn", "other", "decoder.#.mixer"),
    ("Qwen3-Next", "model.layers.#.self_attn", "attention", "decoder.#.attention"),
    ("Qwen3-Next", "model.layers.#.mlp.gate", "router", "decoder.#.moe.router"),
    ("Qwen3-Next", "model.layers.#.mlp.shared_expert_gate", "router", "decoder.#.moe.shared_expert_gate"),
    (
        "Qwen3-Next",
        "model.layers.#.mlp.shared_expert.up_proj",
        "linear",
        "decoder.#.moe.shared_experts.up_proj*",
    ),
    ("Qwen3-Next", "model.layers.#.mlp.experts.#.down_proj", "moe", "decoder.#.moe.experts.down_proj*"),
    ("Qwen3-Next", "mtp.layers.#.self_attn.q_proj", "linear", "mtp.#.attention.q_proj*"),
    ("Qwen3-Next", "mtp.layers.#.mlp.experts.#.up_proj", "moe", "mtp.#.moe.experts.up_proj*"),
    ("Qwen3-Next", "mtp.fc", "linear", "mtp.0.eh_proj"),
    ("Qwen3-Next", "mtp.pre_fc_norm_hidden", "norm", "mtp.0.hidden_norm"),
    ("Nemotron-H", "backbone.layers.#.mixer.in_proj", "linear", "decoder.#.mixer.in_proj"),
    ("Nemotron-H", "backbone.layers.#.mixer", "other", "decoder.#.mixer"),
    ("Nemotron-H", "backbone.layers.#.mixer.q_proj", "linear", "decoder.#.attention.q_proj*"),
    # Its MLPs have no gate.
    ("Nemotron-H", "backbone.layers.#.mixer.up_proj", "linear", "decoder.#.mlp.up_proj"),
    ("Nemotron-H", "backbone.layers.#.mixer.gate", "router", "decoder.#.moe.router"),
    ("Nemotron-H", "backbone.layers.#.mixer.experts.#.up_proj", "moe", "decoder.#.moe.experts.up_proj*"),
    ("Nemotron-H", "backbone.layers.#.norm", "norm", "decoder.#.input_norm"),
    ("Jamba", "model.layers.#.mamba.dt_layernorm", "norm", "decoder.#.mixer.dt_norm"),
    ("Jamba", "model.layers.#.mamba.x_proj", "linear", "decoder.#.mixer.x_proj"),
    ("Jamba", "model.layers.#.feed_forward.router", "router", "decoder.#.moe.router"),
    ("Jamba", "model.layers.#.feed_forward.gate_proj", "linear", "decoder.#.mlp.gate_proj*"),
    ("Jamba", "model.layers.#.pre_ff_layernorm", "norm", "decoder.#.pre_mlp_norm"),
    ("Falcon-H1", "model.layers.#.mamba.conv1d", "conv", "decoder.#.mixer.conv1d"),
    ("Falcon-H1", "model.layers.#.self_attn.v_proj", "linear", "decoder.#.attention.v_proj*"),
    (
        "DBRX",
        "transformer.blocks.#.ffn.experts.mlp",
        "moe",
        "decoder.#.moe.experts.gate_proj* decoder.#.moe.experts.up_proj* decoder.#.moe.experts.down_proj",
    ),
    ("DBRX", "transformer.blocks.#.ffn.router.layer", "router", "decoder.#.moe.router"),
    ("DBRX", "transformer.blocks.#.norm_attn_norm.attn.out_proj", "linear", "decoder.#.attention.o_proj"),
    ("DBRX", "transformer.blocks.#.norm_attn_norm.norm_2", "norm", "decoder.#.post_attention_norm"),
    ("MiniMax-M2", "model.layers.#.block_sparse_moe", "router", "decoder.#.moe.router_correction"),
    ("MiniMax-M2", "model.layers.#.block_sparse_moe.experts.#.w1", "moe", "decoder.#.moe.experts.gate_proj*"),
    ("Hunyuan", "model.layers.#.mlp.gate.wg", "router", "decoder.#.moe.router"),
    ("Hunyuan", "model.layers.#.mlp.shared_mlp.down_proj", "linear", "decoder.#.moe.shared_experts.down_proj"),
    ("Hunyuan", "model.layers.#.self_attn.query_layernorm", "norm", "decoder.#.attention.q_norm"),
    ("Hunyuan", "lm_head", "head", "head"),
    ("GLM-5", "model.layers.#.eh_proj", "linear", "mtp.#.eh_proj"),
    ("GLM-5", "model.layers.#.shared_head.head", "head", "mtp.#.head"),
    ("GLM-5", "model.layers.#.self_attn.indexer.wq_b", "linear", "decoder.#.attention.indexer.wq_b"),
    (
        "Llama-4",
        "language_model.model.layers.#.feed_forward.experts",
        "moe",
        "decoder.#.moe.experts.gate_up_proj decoder.#.moe.experts.down_proj",
    ),
    ("Llama-4", "language_model.model.layers.#.feed_forward.router", "router", "decoder.#.moe.router"),
    ("Llama-4", "vision_model.patch_embedding.linear", "conv", "vision.patch_embedding"),
    ("Llama-4", "vision_model", "embedding", "vision.embedding"),
    ("Llama-4", "vision_model.vision_adapter.mlp.fc1", "linear", "projector.linear_1"),
    (
        "GraniteMoE",
        "model.layers.#.block_sparse_moe.input_linear",
        "moe",
        "decoder.#.moe.experts.gate_up_proj",
    ),
    ("RoBERTa", "roberta.encoder.layer.#.attention.self.key", "linear", "encoder.#.attention.k_proj*"),
    ("RoBERTa", "roberta.encoder.layer.#.attention.self", "attention", "encoder.#.attention"),
    ("RoBERTa", "lm_head", "other", "head.bias"),
    ("RoBERTa", "lm_head.dense", "linear", "head_transform.proj"),
    ("RoBERTa", "lm_head.decoder", "head", "head"),
    ("DistilBERT", "distilbert.transformer.layer.#.attention.q_lin", "linear", "encoder.#.attention.q_proj*"),
    ("DistilBERT", "distilbert.transformer.layer.#.ffn.lin1", "linear", "encoder.#.mlp.up_proj"),
    ("DistilBERT", "vocab_projector", "head", "head"),
    (
        "ModernBERT",
        "model.layers.#.mlp.Wi",
        "linear",
        "encoder.#.mlp.gate_proj* encoder.#.mlp.up_proj*",
    ),
    ("ModernBERT", "model.layers.#.attn.Wo", "linear", "encoder.#.attention.o_proj"),
    ("ModernBERT", "decoder", "head", "head"),
    ("LLaVA", "language_model.model.layers.#.self_attn.k_proj", "linear", "decoder.#.attention.k_proj*"),
    (
        "LLaVA",
        "vision_tower.vision_model.encoder.layers.#.self_attn.k_proj",
        "linear",
        "vision.#.attention.k_proj*",
    ),
    ("LLaVA", "vision_tower.vision_model.embeddings.patch_embedding", "conv", "vision.patch_embedding"),
    ("LLaVA", "vision_tower.vision_model.pre_layrnorm", "norm", "vision.pre_norm"),
    ("LLaVA", "multi_modal_projector.linear_2", "linear", "projector.linear_2"),
    ("Whisper", "model.encoder.conv1", "conv", "audio.conv1"),
    ("Whisper", "model.encoder.layers.#.fc1", "linear", "audio.#.mlp.up_proj"),
    ("Whisper", "model.encoder.layer_norm", "norm", "audio.final_norm"),
    ("Whisper", "model.decoder.layers.#.self_attn.q_proj", "linear", "decoder.#.attention.q_proj*"),
    ("Whisper", "model.decoder.layers.#.encoder_attn.q_proj", "linear", "decoder.#.cross_attention.q_proj"),
    ("Whisper", "proj_out", "head", "head"),
    ("DINOv2", "encoder.layer.#.attention.attention.value", "linear", "vision.#.attention.v_proj*"),
    ("DINOv2", "embeddings", "embedding", "vision.embedding"),
    ("DINOv2", "encoder.layer.#.layer_scale1", "other", "vision.#.layer_scale1"),
    (
        "InternVL",
        "vision_model.encoder.layers.#.attn.qkv",
        "linear",
        "vision.#.attention.q_proj* vision.#.attention.k_proj* vision.#.attention.v_proj*",
    ),
    (
        "GPT-NeoX",
        "gpt_neox.layers.#.attention.query_key_value",
        "linear",
        "decoder.#.attention.q_proj* decoder.#.attention.k_proj* decoder.#.attention.v_proj*",
    ),
    ("GPT-NeoX", "gpt_neox.layers.#.attention", "attention", "decoder.#.attention"),
    ("GPT-NeoX", "embed_out", "head", "head"),
    ("BLOOM", "h.#.self_attention.dense", "linear", "decoder.#.attention.o_proj"),
    ("BLOOM", "word_embeddings_layernorm", "norm", "embedding_norm"),
    ("BLOOM", "lm_head", "head", "head"),
    ("Swin", "swin.encoder.layers.#.blocks.#.attention.self.query", "linear", "vision.#.#.attention.q_proj*"),
    ("Swin", "swin.encoder.layers.#.blocks.#.layernorm_after", "norm", "vision.#.#.post_attention_norm"),
    (
        "Llama-3.2-Vision",
        "language_model.model.layers.#.cross_attn.q_proj",
        "linear",
        "decoder.#.cross_attention.q_proj",
    ),
    (
        "Llama-3.2-Vision",
        "vision_model.global_transformer.layers.#.self_attn.q_proj",
        "linear",
        "vision.global_transformer.#.attention.q_proj*",
    ),
    ("Llama-3.2-Vision", "multi_modal_projector", "linear", "projector"),
    ("a diffusion transformer", "blocks.#.attn1.to_v", "linear", "encoder.#.attention.v_proj*"),
    ("a diffusion transformer", "blocks.#.attn2.to_v", "linear", "encoder.#.cross_attention.v_proj"),
    ("a diffusion transformer", "blocks.#.attn1.to_out.#", "linear", "encoder.#.attention.o_proj"),
]


@cache
def _other(name: str) -> Description:
    other = {**OTHERS, **UNUSUAL}[name]
    return describe(from_tensors([(tensor, None, None) for tensor in other.tensors], config=other.config))


@pytest.mark.parametrize(("model", "template", "kind", "parts"), TABLE)
def test_other_families(model: str, template: str, kind: str, parts: str) -> None:
    layers = [layer for layer in _other(model).sets if layer.name_template == template]
    assert layers
    found = {part.role + ("*" if part.group else "") for part in layers[0].parts}
    assert (layers[0].kind, found) == (kind, set(parts.split()))


@pytest.mark.parametrize("name", [*OTHERS, *UNUSUAL])
def test_what_is_not_known_is_said(name: str) -> None:
    description = _other(name)
    assert description.family is None
    assert description.findings[0].code == "PQ452"
    said = {layer for finding in description.findings for layer in finding.layers}
    for layer in description.sets:
        if layer.kind == "other" and not any("mixer" in part.role or "head.bias" in part.role for part in layer.parts):
            form = layer.names["checkpoint"][0]
            assert said.issuperset(spans(form, layer.indices))


@pytest.mark.parametrize("name", [*OTHERS, *UNUSUAL])
def test_groups_hold_one_tower_each(name: str) -> None:
    """Two stacks of one model never share a label."""
    labels: dict[str, set[str]] = {}
    for layer in _other(name).sets:
        for part in layer.parts:
            if part.group:
                labels.setdefault(part.group.label, set()).add(layer.name_template.partition("#")[0])
    assert all(len(stacks) == 1 for stacks in labels.values())


def test_experts_without_a_gate_are_a_group_under_their_own_name() -> None:
    (up,) = (s for s in _other("Nemotron-H").sets if s.name_template == "backbone.layers.#.mixer.experts.#.up_proj")
    assert up.parts[0].group is not None
    assert up.parts[0].group.label == "decoder.#.moe.experts.up_proj"
    assert not any("gate_up_proj" in form.template for forms in up.parts[0].names.values() for form in forms)


def test_projections_of_unknown_use_are_in_no_group() -> None:
    findings = {finding.code: finding for finding in _other("GLM-5").findings}
    assert "model.layers.{0..2}.self_attn.indexer.wk" in findings["PQ455"].layers


def test_layers_that_a_known_family_lacks_are_told_by_spelling() -> None:
    tensors = [
        ("model.embed_tokens.weight", None, None),
        ("model.layers.0.self_attn.q_proj.weight", None, None),
        ("model.layers.0.self_attn.out_gate.g_proj.weight", None, None),
        ("model.layers.0.mystery", None, None),
    ]
    description = describe(from_tensors(tensors, config={"model_type": "llama"}))
    assert description.family == "llama"
    assert [finding.code for finding in description.findings] == ["PQ453", "PQ454", "PQ455"]
    kinds = {layer.name_template: layer.kind for layer in description.sets}
    assert kinds["model.layers.#.self_attn.out_gate.g_proj"] == "linear"
    assert kinds["model.layers.#"] == "other"


def test_a_configuration_that_contradicts_the_names_is_not_believed() -> None:
    tensors = [(name, None, None) for name in OTHERS["GPT-NeoX"].tensors]
    description = describe(from_tensors(tensors, config={"model_type": "llama"}))
    assert description.family is None


@pytest.mark.parametrize("name", NAMES)
def test_a_family_is_recognised_without_a_configuration(name: str) -> None:
    model = stored(name)
    description = describe(StoredModel(model.name, model.source, {}, model.sets))
    assert description.family == described(name).family


def test_rotary_tables_are_no_layers() -> None:
    assert not any("rotary" in layer.name_template for layer in _other("GPT-NeoX").sets)


def test_a_class_name_tells_what_a_word_does_not() -> None:
    tensors = [("net.0.squeeze.weight", (4, 4), "F32"), ("net.0.excite.weight", (4,), "F32")]
    model = from_tensors(tensors, naming="module")
    types = {"net.0.squeeze": "Linear", "net.0.excite": "MyRMSNorm"}
    told = describe(StoredModel(model.name, model.source, {}, model.sets, "module", types))
    assert {layer.name_template: layer.kind for layer in told.sets} == {
        "net.#.squeeze": "linear",
        "net.#.excite": "norm",
    }


_WORDS = (
    "model layers 0 1 7 self_attn q_proj k_proj v_proj qkv mlp gate up_proj down_proj experts w1 w2 gate_up_proj"
    " vision encoder decoder mtp mamba norm embeddings projector head output attention dense layer block x"
)
_PARTS = st.sampled_from(sorted(_WORDS.split()))
_TENSORS = st.lists(_PARTS, min_size=1, max_size=7).map(".".join)
_SHAPES = st.none() | st.lists(st.integers(0, 64), max_size=4).map(tuple)


@given(
    st.dictionaries(_TENSORS, _SHAPES, max_size=30),
    st.sampled_from(["llama", "mixtral", "deepseek_v3", "gpt_oss", "t5", "gemma3", "qwen2_vl", "none", 3, None]),
    st.sampled_from(["checkpoint", "module"]),
)
def test_any_names_at_all_are_described_and_none_is_lost(
    tensors: dict[str, tuple[int, ...] | None], model_type: object, naming: Any
) -> None:
    config = {"model_type": model_type, "num_hidden_layers": 1, "num_nextn_predict_layers": 1, "num_experts": 2}
    model = from_tensors([(name, shape, "BF16") for name, shape in tensors.items()], config=config, naming=naming)
    description = describe(model)
    expected = sorted((s.template, i) for s in model.sets for i in s.indices)
    owning = [(layer, indices) for layer in description.sets if layer.tensors for indices in layer.indices]
    space = "checkpoint" if naming == "checkpoint" else "module"
    found = sorted((layer.names[space][0].template, indices) for layer, indices in owning)
    if not any(layer.tied_to for layer in description.sets):
        assert found == expected
    for layer in description.sets:
        assert layer.parts
        assert list(layer.indices) == sorted(set(layer.indices))
        for part in layer.parts:
            assert part.names["checkpoint"]
            for form in (form for forms in part.names.values() for form in forms):
                form.fill((*layer.indices[0], 0) if part.repeats else layer.indices[0])


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": ["llama"]},
        {"architectures": "LlamaForCausalLM"},
        {"architectures": [None, 3]},
        {"text_config": 7, "vision_config": []},
        {"num_attention_heads": "many", "num_hidden_layers": -1, "num_nextn_predict_layers": True},
        {"tie_word_embeddings": "yes"},
    ],
)
def test_a_malformed_configuration_is_as_good_as_none(config: dict[str, object]) -> None:
    tensors = [("model.layers.0.self_attn.qkv_proj.weight", (96, 32), "BF16"), ("model.norm.weight", (32,), "BF16")]
    sets = describe(from_tensors(tensors, config=config)).sets
    assert {layer.kind for layer in sets} == {"linear", "norm", "attention"}
