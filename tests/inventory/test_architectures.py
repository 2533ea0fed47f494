"""Kinds, places and fused groups of every layer of the 25 models, one template a line."""

from __future__ import annotations

import time

import pytest

from policyquant.inventory.architectures.describe import Description, describe
from policyquant.inventory.architectures.vocabulary import canonical_names, place
from policyquant.inventory.tensor_list import from_tensors
from tests.inventory.models import NAMES, case, described, stored

QKV = "decoder.#.attention.qkv_proj"
GATE_UP = "decoder.#.mlp.gate_up_proj"
EXPERTS = "decoder.#.moe.experts"
SHARED = "decoder.#.moe.shared_experts"

# template: (kind, canonical names of the parts, what each fuses to)
AROUND = {
    "model.embed_tokens": ("embedding", "embedding", ""),
    "model.norm": ("norm", "final_norm", ""),
    "lm_head": ("head", "head", ""),
    "model.layers.#.input_layernorm": ("norm", "decoder.#.input_norm", ""),
    "model.layers.#.post_attention_layernorm": ("norm", "decoder.#.post_attention_norm", ""),
}
ATTENTION = {
    "model.layers.#.self_attn": ("attention", "decoder.#.attention", ""),
    "model.layers.#.self_attn.q_proj": ("linear", "decoder.#.attention.q_proj", QKV),
    "model.layers.#.self_attn.k_proj": ("linear", "decoder.#.attention.k_proj", QKV),
    "model.layers.#.self_attn.v_proj": ("linear", "decoder.#.attention.v_proj", QKV),
    "model.layers.#.self_attn.o_proj": ("linear", "decoder.#.attention.o_proj", ""),
}
NORMED_QK = {
    "model.layers.#.self_attn.q_norm": ("norm", "decoder.#.attention.q_norm", ""),
    "model.layers.#.self_attn.k_norm": ("norm", "decoder.#.attention.k_norm", ""),
}
MLP = {
    "model.layers.#.mlp.gate_proj": ("linear", "decoder.#.mlp.gate_proj", GATE_UP),
    "model.layers.#.mlp.up_proj": ("linear", "decoder.#.mlp.up_proj", GATE_UP),
    "model.layers.#.mlp.act_fn": ("activation", "decoder.#.mlp.act", ""),
    "model.layers.#.mlp.down_proj": ("linear", "decoder.#.mlp.down_proj", ""),
}
LLAMA = AROUND | ATTENTION | MLP
QWEN3 = LLAMA | NORMED_QK
ROUTED = {
    "model.layers.#.mlp.gate": ("router", "decoder.#.moe.router", ""),
    "model.layers.#.mlp.experts.#.gate_proj": ("moe", f"{EXPERTS}.gate_proj", f"{EXPERTS}.gate_up_proj"),
    "model.layers.#.mlp.experts.#.up_proj": ("moe", f"{EXPERTS}.up_proj", f"{EXPERTS}.gate_up_proj"),
    "model.layers.#.mlp.experts.act_fn": ("activation", f"{EXPERTS}.act", ""),
    "model.layers.#.mlp.experts.#.down_proj": ("moe", f"{EXPERTS}.down_proj", f"{EXPERTS}.down_proj"),
}
MIXTRAL = (
    AROUND
    | ATTENTION
    | {
        "model.layers.#.block_sparse_moe.gate": ("router", "decoder.#.moe.router", ""),
        "model.layers.#.block_sparse_moe.experts.#.w1": ("moe", f"{EXPERTS}.gate_proj", f"{EXPERTS}.gate_up_proj"),
        "model.layers.#.block_sparse_moe.experts.#.w3": ("moe", f"{EXPERTS}.up_proj", f"{EXPERTS}.gate_up_proj"),
        "model.layers.#.block_sparse_moe.experts.act_fn": ("activation", f"{EXPERTS}.act", ""),
        "model.layers.#.block_sparse_moe.experts.#.w2": ("moe", f"{EXPERTS}.down_proj", f"{EXPERTS}.down_proj"),
    }
)
QKV_A = "decoder.#.attention.qkv_a_proj"
KIMI = (
    AROUND
    | MLP
    | ROUTED
    | {
        "model.layers.#.self_attn": ("attention", "decoder.#.attention", ""),
        "model.layers.#.self_attn.q_a_proj": ("linear", "decoder.#.attention.q_a_proj", QKV_A),
        "model.layers.#.self_attn.q_a_layernorm": ("norm", "decoder.#.attention.q_a_norm", ""),
        "model.layers.#.self_attn.q_b_proj": ("linear", "decoder.#.attention.q_b_proj", ""),
        "model.layers.#.self_attn.kv_a_proj_with_mqa": ("linear", "decoder.#.attention.kv_a_proj", QKV_A),
        "model.layers.#.self_attn.kv_a_layernorm": ("norm", "decoder.#.attention.kv_a_norm", ""),
        "model.layers.#.self_attn.kv_b_proj": ("linear", "decoder.#.attention.kv_b_proj", ""),
        "model.layers.#.self_attn.o_proj": ("linear", "decoder.#.attention.o_proj", ""),
        "model.layers.#.mlp.shared_experts.gate_proj": ("linear", f"{SHARED}.gate_proj", f"{SHARED}.gate_up_proj"),
        "model.layers.#.mlp.shared_experts.up_proj": ("linear", f"{SHARED}.up_proj", f"{SHARED}.gate_up_proj"),
        "model.layers.#.mlp.shared_experts.act_fn": ("activation", f"{SHARED}.act", ""),
        "model.layers.#.mlp.shared_experts.down_proj": ("linear", f"{SHARED}.down_proj", ""),
    }
)
# The prediction layer of DeepSeek-V3 has all that a block with experts has, and six layers more.
PREDICTION = {
    "model.layers.#.embed_tokens": ("embedding", "mtp.#.embedding", ""),
    "model.layers.#.enorm": ("norm", "mtp.#.embedding_norm", ""),
    "model.layers.#.hnorm": ("norm", "mtp.#.hidden_norm", ""),
    "model.layers.#.eh_proj": ("linear", "mtp.#.eh_proj", ""),
    "model.layers.#.shared_head.norm": ("norm", "mtp.#.final_norm", ""),
    "model.layers.#.shared_head.head": ("head", "mtp.#.head", ""),
}
IN_PREDICTION = {
    template: (kind, role.replace("decoder.#", "mtp.#"), group.replace("decoder.#", "mtp.#"))
    for template, (kind, role, group) in KIMI.items()
    if role.startswith("decoder.#") and not role.startswith("decoder.#.mlp.")
}
GPT_OSS = (
    AROUND
    | ATTENTION
    | {
        "model.layers.#.mlp.router": ("router", "decoder.#.moe.router", ""),
        "model.layers.#.mlp.experts": (
            "moe",
            f"{EXPERTS}.down_proj {EXPERTS}.gate_up_proj",
            "",  # Either projection of all experts is one tensor, with nothing beside it that it must agree with.
        ),
    }
)


def _qkv(tower: str) -> tuple[str, str]:
    return " ".join(f"{tower}.#.attention.{x}_proj" for x in "qkv"), " ".join([f"{tower}.#.attention.qkv_proj"] * 3)


PHI3 = AROUND | {
    "model.layers.#.self_attn": ("attention", "decoder.#.attention", ""),
    "model.layers.#.self_attn.qkv_proj": ("linear", *_qkv("decoder")),
    "model.layers.#.self_attn.o_proj": ("linear", "decoder.#.attention.o_proj", ""),
    "model.layers.#.mlp.gate_up_proj": (
        "linear",
        "decoder.#.mlp.gate_proj decoder.#.mlp.up_proj",
        f"{GATE_UP} {GATE_UP}",
    ),
    "model.layers.#.mlp.activation_fn": ("activation", "decoder.#.mlp.act", ""),
    "model.layers.#.mlp.down_proj": ("linear", "decoder.#.mlp.down_proj", ""),
}
QWEN_VL = LLAMA | {
    "visual.patch_embed.proj": ("conv", "vision.patch_embedding", ""),
    "visual.blocks.#.norm1": ("norm", "vision.#.input_norm", ""),
    "visual.blocks.#.attn": ("attention", "vision.#.attention", ""),
    "visual.blocks.#.attn.qkv": ("linear", *_qkv("vision")),
    "visual.blocks.#.attn.proj": ("linear", "vision.#.attention.o_proj", ""),
    "visual.blocks.#.norm2": ("norm", "vision.#.post_attention_norm", ""),
    "visual.blocks.#.mlp.gate_proj": ("linear", "vision.#.mlp.gate_proj", "vision.#.mlp.gate_up_proj"),
    "visual.blocks.#.mlp.up_proj": ("linear", "vision.#.mlp.up_proj", "vision.#.mlp.gate_up_proj"),
    "visual.blocks.#.mlp.act_fn": ("activation", "vision.#.mlp.act", ""),
    "visual.blocks.#.mlp.down_proj": ("linear", "vision.#.mlp.down_proj", ""),
    "visual.merger.ln_q": ("norm", "projector.norm", ""),
    "visual.merger.mlp.0": ("linear", "projector.linear_1", ""),
    "visual.merger.mlp.1": ("activation", "projector.act", ""),
    "visual.merger.mlp.2": ("linear", "projector.linear_2", ""),
}
_GEMMA_TEXT = {f"language_model.{template}": row for template, row in QWEN3.items() if template != "lm_head"} | {
    "language_model.model.layers.#.pre_feedforward_layernorm": ("norm", "decoder.#.pre_mlp_norm", ""),
    "language_model.model.layers.#.post_feedforward_layernorm": ("norm", "decoder.#.post_mlp_norm", ""),
    "lm_head": ("head", "head", ""),
}
VISION_QKV = "vision.#.attention.qkv_proj"
_SIGLIP = "vision_tower.vision_model"
GEMMA3 = _GEMMA_TEXT | {
    f"{_SIGLIP}.embeddings.patch_embedding": ("conv", "vision.patch_embedding", ""),
    f"{_SIGLIP}.embeddings.position_embedding": ("embedding", "vision.position_embedding", ""),
    f"{_SIGLIP}.encoder.layers.#.layer_norm1": ("norm", "vision.#.input_norm", ""),
    f"{_SIGLIP}.encoder.layers.#.layer_norm2": ("norm", "vision.#.post_attention_norm", ""),
    f"{_SIGLIP}.encoder.layers.#.self_attn": ("attention", "vision.#.attention", ""),
    f"{_SIGLIP}.encoder.layers.#.self_attn.q_proj": ("linear", "vision.#.attention.q_proj", VISION_QKV),
    f"{_SIGLIP}.encoder.layers.#.self_attn.k_proj": ("linear", "vision.#.attention.k_proj", VISION_QKV),
    f"{_SIGLIP}.encoder.layers.#.self_attn.v_proj": ("linear", "vision.#.attention.v_proj", VISION_QKV),
    f"{_SIGLIP}.encoder.layers.#.self_attn.out_proj": ("linear", "vision.#.attention.o_proj", ""),
    f"{_SIGLIP}.encoder.layers.#.mlp.fc1": ("linear", "vision.#.mlp.up_proj", ""),
    f"{_SIGLIP}.encoder.layers.#.mlp.activation_fn": ("activation", "vision.#.mlp.act", ""),
    f"{_SIGLIP}.encoder.layers.#.mlp.fc2": ("linear", "vision.#.mlp.down_proj", ""),
    f"{_SIGLIP}.post_layernorm": ("norm", "vision.final_norm", ""),
    "multi_modal_projector": ("linear", "projector", ""),
    "multi_modal_projector.mm_soft_emb_norm": ("norm", "projector.norm", ""),
}
GPT2 = {
    "wte": ("embedding", "embedding", ""),
    "wpe": ("embedding", "position_embedding", ""),
    "h.#.ln_1": ("norm", "decoder.#.input_norm", ""),
    "h.#.attn": ("attention", "decoder.#.attention", ""),
    "h.#.attn.c_attn": ("linear", *_qkv("decoder")),
    "h.#.attn.c_proj": ("linear", "decoder.#.attention.o_proj", ""),
    "h.#.ln_2": ("norm", "decoder.#.post_attention_norm", ""),
    "h.#.mlp.c_fc": ("linear", "decoder.#.mlp.up_proj", ""),
    "h.#.mlp.act": ("activation", "decoder.#.mlp.act", ""),
    "h.#.mlp.c_proj": ("linear", "decoder.#.mlp.down_proj", ""),
    "ln_f": ("norm", "final_norm", ""),
    "lm_head": ("head", "head", ""),
}
OPT = {
    "model.decoder.embed_tokens": ("embedding", "embedding", ""),
    "model.decoder.embed_positions": ("embedding", "position_embedding", ""),
    "model.decoder.layers.#.self_attn_layer_norm": ("norm", "decoder.#.input_norm", ""),
    "model.decoder.layers.#.self_attn": ("attention", "decoder.#.attention", ""),
    "model.decoder.layers.#.self_attn.q_proj": ("linear", "decoder.#.attention.q_proj", QKV),
    "model.decoder.layers.#.self_attn.k_proj": ("linear", "decoder.#.attention.k_proj", QKV),
    "model.decoder.layers.#.self_attn.v_proj": ("linear", "decoder.#.attention.v_proj", QKV),
    "model.decoder.layers.#.self_attn.out_proj": ("linear", "decoder.#.attention.o_proj", ""),
    "model.decoder.layers.#.final_layer_norm": ("norm", "decoder.#.post_attention_norm", ""),
    "model.decoder.layers.#.fc1": ("linear", "decoder.#.mlp.up_proj", ""),
    "model.decoder.layers.#.activation_fn": ("activation", "decoder.#.mlp.act", ""),
    "model.decoder.layers.#.fc2": ("linear", "decoder.#.mlp.down_proj", ""),
    "model.decoder.final_layer_norm": ("norm", "final_norm", ""),
    "lm_head": ("head", "head", ""),
}
_BERT_LAYER = "bert.encoder.layer.#"
_ENCODER_QKV = "encoder.#.attention.qkv_proj"
BERT = {
    "bert.embeddings.word_embeddings": ("embedding", "embedding", ""),
    "bert.embeddings.position_embeddings": ("embedding", "position_embedding", ""),
    "bert.embeddings.token_type_embeddings": ("embedding", "type_embedding", ""),
    "bert.embeddings.LayerNorm": ("norm", "embedding_norm", ""),
    f"{_BERT_LAYER}.attention.self": ("attention", "encoder.#.attention", ""),
    f"{_BERT_LAYER}.attention.self.query": ("linear", "encoder.#.attention.q_proj", _ENCODER_QKV),
    f"{_BERT_LAYER}.attention.self.key": ("linear", "encoder.#.attention.k_proj", _ENCODER_QKV),
    f"{_BERT_LAYER}.attention.self.value": ("linear", "encoder.#.attention.v_proj", _ENCODER_QKV),
    f"{_BERT_LAYER}.attention.output.dense": ("linear", "encoder.#.attention.o_proj", ""),
    f"{_BERT_LAYER}.attention.output.LayerNorm": ("norm", "encoder.#.post_attention_norm", ""),
    f"{_BERT_LAYER}.intermediate.dense": ("linear", "encoder.#.mlp.up_proj", ""),
    f"{_BERT_LAYER}.intermediate.intermediate_act_fn": ("activation", "encoder.#.mlp.act", ""),
    f"{_BERT_LAYER}.output.dense": ("linear", "encoder.#.mlp.down_proj", ""),
    f"{_BERT_LAYER}.output.LayerNorm": ("norm", "encoder.#.post_mlp_norm", ""),
    "bert.pooler.dense": ("linear", "pooler.proj", ""),
    "bert.pooler.activation": ("activation", "pooler.act", ""),
    "cls.predictions": ("other", "head.bias", ""),
    "cls.predictions.transform.dense": ("linear", "head_transform.proj", ""),
    "cls.predictions.transform.transform_act_fn": ("activation", "head_transform.act", ""),
    "cls.predictions.transform.LayerNorm": ("norm", "head_transform.norm", ""),
    "cls.predictions.decoder": ("head", "head", ""),
    "cls.seq_relationship": ("head", "head.next_sentence", ""),
}


def _t5_block(tower: str) -> dict[str, tuple[str, str, str]]:
    block, ff = f"{tower}.block.#.layer", 2 if tower == "decoder" else 1
    rows = {
        f"{block}.0.layer_norm": ("norm", f"{tower}.#.input_norm", ""),
        f"{block}.0.SelfAttention": ("attention", f"{tower}.#.attention", ""),
        f"{block}.0.SelfAttention.o": ("linear", f"{tower}.#.attention.o_proj", ""),
        f"{block}.0.SelfAttention.relative_attention_bias": ("embedding", f"{tower}.#.attention.relative_position", ""),
        f"{block}.{ff}.layer_norm": ("norm", f"{tower}.#.post_attention_norm", ""),
        f"{block}.{ff}.DenseReluDense.wi": ("linear", f"{tower}.#.mlp.up_proj", ""),
        f"{block}.{ff}.DenseReluDense.act": ("activation", f"{tower}.#.mlp.act", ""),
        f"{block}.{ff}.DenseReluDense.wo": ("linear", f"{tower}.#.mlp.down_proj", ""),
    }
    for x in "qkv":
        fused = f"{tower}.#.attention.qkv_proj"
        rows[f"{block}.0.SelfAttention.{x}"] = ("linear", f"{tower}.#.attention.{x}_proj", fused)
    return rows


T5 = (
    _t5_block("encoder")
    | _t5_block("decoder")
    | {
        "shared": ("embedding", "embedding", ""),
        "encoder.embed_tokens": ("embedding", "encoder.embedding", ""),
        "decoder.embed_tokens": ("embedding", "decoder.embedding", ""),
        "encoder.final_layer_norm": ("norm", "encoder.final_norm", ""),
        "decoder.final_layer_norm": ("norm", "final_norm", ""),
        "lm_head": ("head", "head", ""),
        "decoder.block.#.layer.1.layer_norm": ("norm", "decoder.#.cross_attention_norm", ""),
        "decoder.block.#.layer.1.EncDecAttention": ("attention", "decoder.#.cross_attention", ""),
    }
    | {
        # Queries come from the decoder, keys and values from the encoder: nothing to fuse.
        f"decoder.block.#.layer.1.EncDecAttention.{x}": ("linear", f"decoder.#.cross_attention.{x}_proj", "")
        for x in "qkvo"
    }
)
_VIT_LAYER = "vit.encoder.layer.#"
VIT = {
    "vit.embeddings": ("embedding", "vision.embedding", ""),
    "vit.embeddings.patch_embeddings.projection": ("conv", "vision.patch_embedding", ""),
    f"{_VIT_LAYER}.layernorm_before": ("norm", "vision.#.input_norm", ""),
    f"{_VIT_LAYER}.attention": ("attention", "vision.#.attention", ""),
    f"{_VIT_LAYER}.attention.attention.query": ("linear", "vision.#.attention.q_proj", "vision.#.attention.qkv_proj"),
    f"{_VIT_LAYER}.attention.attention.key": ("linear", "vision.#.attention.k_proj", "vision.#.attention.qkv_proj"),
    f"{_VIT_LAYER}.attention.attention.value": ("linear", "vision.#.attention.v_proj", "vision.#.attention.qkv_proj"),
    f"{_VIT_LAYER}.attention.output.dense": ("linear", "vision.#.attention.o_proj", ""),
    f"{_VIT_LAYER}.layernorm_after": ("norm", "vision.#.post_attention_norm", ""),
    f"{_VIT_LAYER}.intermediate.dense": ("linear", "vision.#.mlp.up_proj", ""),
    f"{_VIT_LAYER}.intermediate.intermediate_act_fn": ("activation", "vision.#.mlp.act", ""),
    f"{_VIT_LAYER}.output.dense": ("linear", "vision.#.mlp.down_proj", ""),
    "vit.layernorm": ("norm", "vision.final_norm", ""),
    "classifier": ("head", "head", ""),
}
MAMBA2 = {
    "backbone.embeddings": ("embedding", "embedding", ""),
    "backbone.layers.#.norm": ("norm", "decoder.#.input_norm", ""),
    "backbone.layers.#.mixer": ("other", "decoder.#.mixer", ""),
    "backbone.layers.#.mixer.in_proj": ("linear", "decoder.#.mixer.in_proj", ""),
    "backbone.layers.#.mixer.conv1d": ("conv", "decoder.#.mixer.conv1d", ""),
    "backbone.layers.#.mixer.act": ("activation", "decoder.#.mixer.act", ""),
    "backbone.layers.#.mixer.norm": ("norm", "decoder.#.mixer.norm", ""),
    "backbone.layers.#.mixer.out_proj": ("linear", "decoder.#.mixer.out_proj", ""),
    "backbone.norm_f": ("norm", "final_norm", ""),
    "lm_head": ("head", "head", ""),
}

EXPECTED = {
    "DeepSeek-V3": ("deepseek", KIMI | PREDICTION),
    "Dolphin3.0-R1-Mistral-24B": ("llama", LLAMA),
    "Kimi-K2-Instruct": ("deepseek", KIMI),
    "Mamba-Codestral-7B-v0.1": ("mamba2", MAMBA2),
    "Meta-Llama-3-70B": ("llama", LLAMA),
    "Meta-Llama-3-8B": ("llama", LLAMA),
    "Mistral-7B-v0.1": ("llama", LLAMA),
    "Mixtral-8x7B-v0.1": ("mixtral", MIXTRAL),
    "Phi-3-mini-4k-instruct": ("phi3", PHI3),
    "Qwen2.5-7B": ("llama", LLAMA),
    "Qwen2.5-VL-7B-Instruct": ("qwen2_5_vl", QWEN_VL),
    "Qwen3-1.7B": ("llama", QWEN3),
    "Qwen3-14B-MLX-4bit": ("llama", QWEN3),
    "Qwen3-235B-A22B": ("qwen_moe", AROUND | ATTENTION | NORMED_QK | ROUTED),
    "Qwen3-30B-A3B": ("qwen_moe", AROUND | ATTENTION | NORMED_QK | ROUTED),
    "Qwen3-8B-NVFP4": ("llama", QWEN3),
    "SmolLM2-135M": ("llama", LLAMA),
    "WizardLM-2-8x22B": ("mixtral", MIXTRAL),
    "bert-base-uncased": ("bert", BERT),
    "gemma-3-4b-it": ("gemma3", GEMMA3),
    "gpt-oss-120b": ("gpt_oss", GPT_OSS),
    "gpt2": ("gpt2", GPT2),
    "opt-125m": ("opt", OPT),
    "t5-small": ("t5", T5),
    "vit-base-patch16-224": ("vit", VIT),
}


def test_every_model_has_a_table() -> None:
    assert sorted(EXPECTED) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_kinds_places_and_groups(name: str) -> None:
    family, table = EXPECTED[name]
    description = described(name)
    assert description.family == family
    assert description.findings == ()
    found: dict[str, set[tuple[str, str, str]]] = {}
    for layer in description.sets:
        row = (
            layer.kind,
            " ".join(part.role for part in layer.parts),
            " ".join(part.group.label for part in layer.parts if part.group),
        )
        for indices in layer.indices:
            found.setdefault(_template(layer.name(indices), table), set()).add(row)
    expected = {template: {row} for template, row in table.items()}
    if name == "DeepSeek-V3":
        for template, row in IN_PREDICTION.items():
            expected[template].add(row)
    assert found == expected


def _template(name: str, table: dict[str, tuple[str, str, str]]) -> str:
    """The template under which a table lists a layer: T5's and the merger's inner indices stand as they are."""
    parts = name.split(".")
    numbers = [at for at, part in enumerate(parts) if part.isdecimal()]
    for kept in (numbers, numbers[:1], []):
        template = ".".join("#" if at in kept else part for at, part in enumerate(parts))
        if template in table:
            return template
    return name


@pytest.mark.parametrize("name", NAMES)
def test_every_stored_layer_is_described_once(name: str) -> None:
    from_source = sorted((s.template, indices) for s in stored(name).sets for indices in s.indices)
    from_description = sorted(
        (layer.name_template, indices) for layer in described(name).sets if layer.tensors for indices in layer.indices
    )
    assert from_description == from_source


@pytest.mark.parametrize("name", NAMES)
def test_every_canonical_name_is_in_the_vocabulary(name: str) -> None:
    vocabulary = set(canonical_names())
    for layer in described(name).sets:
        for part in layer.parts:
            assert {form.template for form in part.names["canonical"]} <= vocabulary


def test_the_vocabulary_knows_each_of_its_names() -> None:
    for template in canonical_names():
        assert place(template).role is not None, template


def test_gemma_3_is_known_as_transformers_v5_saves_it_too() -> None:
    published = described("gemma-3-4b-it")
    tensors = [
        (name.replace("vision_tower.vision_model.", "vision_tower."), shape, dtype)
        for name, (dtype, shape) in case("gemma-3-4b-it")["tensors"].items()
    ]
    saved = describe(from_tensors(tensors, config=stored("gemma-3-4b-it").config))
    assert saved.findings == ()
    assert _without_checkpoint_names(saved) == _without_checkpoint_names(published)


def _without_checkpoint_names(description: Description) -> list[object]:
    return [
        (layer.kind, layer.indices, layer.names["module"], layer.names["canonical"], layer.feeds)
        for layer in description.sets
    ]


def test_only_attention_that_generates_has_a_kv_cache() -> None:
    caching = {
        (name, part.role)
        for name in NAMES
        for layer in described(name).sets
        if layer.has_kv_cache
        for part in layer.parts
    }
    assert {role for _, role in caching} == {"decoder.#.attention", "decoder.#.cross_attention", "mtp.#.attention"}
    assert {name for name, _ in caching}.isdisjoint({"bert-base-uncased", "vit-base-patch16-224"})


def test_the_prediction_layer_counts_from_zero_in_its_own_tower() -> None:
    layers = [layer for layer in described("DeepSeek-V3").sets if layer.prediction]
    assert {indices[0] for layer in layers for indices in layer.indices} == {61}
    names = {form.fill(layer.indices[0]) for layer in layers for form in layer.names["canonical"]}
    assert all(name.startswith("mtp.0.") for name in names)
    assert not any(layer.prediction for layer in described("Kimi-K2-Instruct").sets)


def test_a_projection_without_fellows_is_in_no_group() -> None:
    """DeepSeek-V2-Lite projects its queries at once: nothing is run together with q_proj, nor with kv_a_proj."""
    names = [
        f"model.layers.{block}.self_attn.{projection}.weight"
        for block in range(3)
        for projection in ("q_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
    ]
    tensors = [(name, (64, 64), "BF16") for name in names]
    description = describe(from_tensors(tensors, config={"model_type": "deepseek_v2"}))
    assert description.family == "deepseek"
    assert [part.group for layer in description.sets for part in layer.parts if part.group] == []


def test_one_block_of_fused_experts_is_one_group() -> None:
    keys = {
        tuple(indices[position] for position in part.group.positions)
        for layer in described("Mixtral-8x7B-v0.1").sets
        if layer.kind == "moe"
        for part in layer.parts
        if part.group
        for indices in layer.indices
    }
    assert keys == {(block,) for block in range(32)}


def test_describing_a_trillion_parameters_takes_milliseconds() -> None:
    model = stored("Kimi-K2-Instruct")
    describe(model)
    best = min(_seconds(model) for _ in range(5))
    assert best < 0.05, "measured 3 ms; 15 times that allows for a busy machine"


def _seconds(model: object) -> float:
    start = time.perf_counter()
    describe(model)  # type: ignore[arg-type]
    return time.perf_counter() - start
