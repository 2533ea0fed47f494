"""Where a method, an output and a KV cache apply, and what is said of a rule that applies nowhere."""

from __future__ import annotations

import pytest

from policyquant import Inventory
from policyquant.inventory.kinds import KINDS, Kind
from policyquant.policy.methods import METHODS
from tests.plan.models import (
    codes,
    deepseek,
    findings,
    inventory,
    llama,
    mixtral,
    mixtral_modules,
    plan,
    quantized,
    qwen2_5_vl,
    t5,
)

OF_KIND: dict[Kind, tuple[Inventory, str]] = {
    "linear": (llama(), "model.layers.0.mlp.down_proj"),
    "moe": (mixtral(), "model.layers.0.block_sparse_moe.experts.0.w1"),
    "router": (mixtral(), "model.layers.0.block_sparse_moe.gate"),
    "norm": (llama(), "model.norm"),
    "activation": (llama(), "model.layers.0.mlp.act_fn"),
    "attention": (llama(), "model.layers.0.self_attn"),
    "embedding": (llama(), "model.embed_tokens"),
    "head": (llama(), "lm_head"),
    "conv": (qwen2_5_vl(), "visual.patch_embed.proj"),
    "other": (inventory("Mamba-Codestral-7B-v0.1"), "backbone.layers.0.mixer"),
}
"""One layer of each kind."""

WEIGHT_METHODS = [name for name in METHODS if name != "none"]
ON_EMBEDDINGS = {"fp8_weight_only", "int8_weight_only", "int4_weight_only", "dequantize"}


def test_the_layers_of_this_table_have_the_kinds_that_it_says() -> None:
    assert set(OF_KIND) == set(KINDS)
    for kind, (model, name) in OF_KIND.items():
        assert plan(model, default="none")[name].kind == kind


@pytest.mark.parametrize("method", WEIGHT_METHODS)
@pytest.mark.parametrize("kind", OF_KIND)
def test_weight_methods_take_what_they_are_named_for(method: str, kind: Kind) -> None:
    model, name = OF_KIND[kind]
    takes = kind in ("linear", "moe", "head", "router") or (kind == "embedding" and method in ON_EMBEDDINGS)
    resolved = plan(model, [{"match": name, "kind": kind, "method": method}])
    assert resolved[name].method == (method if takes else "none")
    # A rule that reaches nothing it can take is a finding.
    assert ("PQ103" in codes(resolved, "error")) == (not takes)


@pytest.mark.parametrize(("kind", "words"), [("other", "layers of kind 'other'"), ("conv", "conv layers")])
def test_what_a_method_does_not_take_is_told_by_its_kind(kind: Kind, words: str) -> None:
    """ "Other layers" would read as all but those of the rule."""
    model, name = OF_KIND[kind]
    (finding,) = findings(plan(model, [{"match": name, "kind": kind, "method": "fp8"}]), "PQ103")
    assert f"takes nothing of what it reaches: fp8 does not take {words} (fp8 takes" in finding


@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        ({"kv_cache": "fp8"}, "PQ104", "layers of kind 'other' have no KV cache"),
        ({"output": "bf16"}, "PQ104", "layers of kind 'other' have no output that could be set"),
    ],
)
def test_what_a_layer_of_another_kind_lacks_is_told_likewise(fields: dict[str, str], code: str, message: str) -> None:
    model, name = OF_KIND["other"]
    (finding,) = findings(plan(model, [{"match": name, "kind": "other", **fields}]), code)
    assert message in finding


@pytest.mark.parametrize("kind", OF_KIND)
def test_none_applies_to_all_kinds(kind: Kind) -> None:
    model, name = OF_KIND[kind]
    resolved = plan(model, [{"kind": kind, "method": "none"}], default="int8")
    assert (resolved[name].method, resolved[name].decided_by) == ("none", "rule")
    assert codes(resolved, "error") == []


@pytest.mark.parametrize("protect", [["head", "embedding", "router"], []])
@pytest.mark.parametrize(
    ("layers", "method"),
    [
        ({"*": "fp8"}, "none"),
        ({"*.block_sparse_moe": "fp8"}, "none"),
        ({"*.gate": "fp8"}, "fp8"),
        ([{"kind": "router", "method": "fp8"}], "fp8"),
        ({"*": "none", "*.gate": "fp8"}, "fp8"),
    ],
)
def test_a_router_is_taken_only_if_named_whether_protected_or_not(
    layers: object, method: str, protect: list[str]
) -> None:
    assert plan(mixtral(), layers, protect=protect)["model.layers.0.block_sparse_moe.gate"].method == method


def test_a_broad_rule_passes_over_what_it_cannot_take() -> None:
    resolved = plan(qwen2_5_vl(), {"*": "fp8"})
    kinds = {layer.kind for layer in resolved.layers() if layer.method != "none"}
    assert kinds == {"linear"}
    assert codes(resolved, "error", "warning") == []


def test_experts_are_taken_however_they_are_stored() -> None:
    assert {n for n in quantized(plan(mixtral(), {"*.experts": "fp8"})) if ".experts." in n}
    assert quantized(plan(mixtral_modules(), {"*.experts": "fp8"})) == {
        "model.layers.0.block_sparse_moe.experts",
        "model.layers.1.block_sparse_moe.experts",
    }


# --- kv_cache --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "pattern", "cached"),
    [
        (llama(), "*", {"model.layers.0.self_attn", "model.layers.1.self_attn"}),
        (llama(), "model.layers.0", {"model.layers.0.self_attn"}),
        (llama(), "*.attention", {"model.layers.0.self_attn", "model.layers.1.self_attn"}),
        # Latent attention has one, prediction layers too.
        (deepseek(), "*", {f"model.layers.{i}.self_attn" for i in range(3)}),
        # A tower that does not generate has none; cross-attention keeps its keys and values as well.
        (qwen2_5_vl(), "*", {f"model.layers.{i}.self_attn" for i in range(2)}),
        (
            t5(),
            "*",
            {
                f"decoder.block.{i}.layer.{j}.{name}"
                for i in range(2)
                for j, name in enumerate(("SelfAttention", "EncDecAttention"))
            },
        ),
    ],
)
def test_a_kv_cache_is_the_decoders_attentions(model: Inventory, pattern: str, cached: set[str]) -> None:
    resolved = plan(model, {pattern: {"kv_cache": "fp8"}})
    assert {layer.name for layer in resolved.layers() if layer.kv_cache is not None} == cached


@pytest.mark.parametrize(
    ("model", "pattern", "error"),
    [
        (llama(), "*.self_attn", False),
        (llama(), "*.self_attn.q_proj", True),
        (llama(), "*.mlp", True),
        (qwen2_5_vl(), "visual", True),
        (inventory("bert-base-uncased"), "*", True),
    ],
)
def test_a_kv_cache_for_layers_that_have_none_is_a_finding(model: Inventory, pattern: str, error: bool) -> None:
    assert ("PQ104" in codes(plan(model, {pattern: {"kv_cache": "fp8"}}), "error")) == error


# --- findings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "error"),
    [
        ({"*layernorm": "fp8"}, True),
        ({"*.self_attn": "fp8"}, False),
        ({"*.act_fn": "fp8"}, True),
        ({"*.embed_tokens": "fp8"}, True),
        ({"*.embed_tokens": "fp8_weight_only"}, False),
        # Also if it is optional, which says that it may reach nothing.
        ([{"match": "*layernorm", "method": "fp8", "optional": True}], True),
        # A later rule for the same layers mends nothing: this one still takes nothing.
        ({"*layernorm": "fp8", "*": "none"}, True),
    ],
)
def test_a_method_that_takes_nothing_of_what_its_rule_reaches_is_an_error(layers: object, error: bool) -> None:
    assert ("PQ103" in codes(plan(llama(), layers), "error")) == error


def test_of_a_preset_it_is_a_note() -> None:
    resolved = plan(inventory("bert-base-uncased"), extends="fp8-kv")
    assert codes(resolved, "error") == []
    assert codes(resolved, "note") == ["PQ302"]


def test_a_preset_that_reaches_nothing_is_a_note_too_and_the_policy_quantizes_nothing() -> None:
    resolved = plan(llama(), extends="fp8-experts")
    assert codes(resolved) == ["PQ204", "PQ301"]


@pytest.mark.parametrize(
    ("rule", "code"),
    [
        # What a rule says beside its method is not dropped in silence.
        ({"match": "*.self_attn.q_proj", "method": "fp8", "kv_cache": "fp8"}, "PQ104"),
        ({"match": "*.self_attn", "method": "fp8", "kv_cache": "fp8"}, None),
        ({"match": "*.self_attn", "kind": "attention", "method": "fp8", "kv_cache": "fp8"}, "PQ103"),
    ],
)
def test_each_thing_that_a_rule_says_applies_somewhere(rule: dict[str, object], code: str | None) -> None:
    found = codes(plan(llama(), [{"match": "*.qkv_proj", "method": "fp8"}, rule]), "error")
    assert found == ([code] if code else [])


@pytest.mark.parametrize("method", ["int8_weight_only", "fp8_weight_only", "dequantize"])
def test_a_layer_without_a_weight_matrix_is_passed_over(method: str) -> None:
    # ViT's embeddings own the class token and the position table, both bare parameters.
    vit = inventory("vit-base-patch16-224")
    resolved = plan(vit, {"*": method}, protect=[])
    assert resolved["vit.embeddings"].method == "none"
    assert codes(plan(vit, [{"kind": "embedding", "method": method}]), "error") == ["PQ103"]
