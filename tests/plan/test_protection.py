"""Heads, embeddings and routers are protected: a rule that does not name them cannot quantize them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from policyquant import Inventory
from policyquant.policy.load import load_policy
from tests.plan.models import deepseek, findings, llama, mixtral, mixtral_modules, plan, t5

HEAD, EMBEDDING = "lm_head", "model.embed_tokens"
ROUTER = "model.layers.0.block_sparse_moe.gate"


@pytest.mark.parametrize(
    ("pattern", "layer", "names"),
    [
        # A pattern names a layer if it would not match it with another last part.
        ("lm_head", HEAD, True),
        ("*.lm_head", HEAD, True),
        ("*head", HEAD, True),
        ("lm*", HEAD, True),
        ("{lm_head,model.norm}", HEAD, True),
        ("re:lm_head", HEAD, True),
        ("re:lm.*", HEAD, True),
        ("*.gate", ROUTER, True),
        ("*.block_sparse_moe.g*", ROUTER, True),
        ("*.g*", ROUTER, True),
        (ROUTER, ROUTER, True),
        (r"re:.*\.gate", ROUTER, True),
        # `*`, `model.*` and a module above do not.
        ("*", HEAD, False),
        ("*", EMBEDDING, False),
        ("*", ROUTER, False),
        ("model.*", EMBEDDING, False),
        ("model", EMBEDDING, False),
        ("model.layers.0", ROUTER, False),
        ("*.block_sparse_moe", ROUTER, False),
        ("*.block_sparse_moe.*", ROUTER, False),
        ("model.layers.{0..1}.*", ROUTER, False),
        ("re:.*", HEAD, False),
        (r"re:model\..*", ROUTER, False),
        ("*.{gate,*}", ROUTER, False),
        # What counts is the namespace to which the pattern belongs: here the canonical one.
        ("head", HEAD, True),
        ("embedding", EMBEDDING, True),
        ("decoder.*.moe.router", ROUTER, True),
        ("decoder.*.router", ROUTER, True),
        ("decoder.*.moe", ROUTER, False),
        ("decoder.*.moe.*", ROUTER, False),
        # And here the module's, where the router is `mlp.gate`.
        ("*.mlp.gate", ROUTER, True),
        ("*.mlp.g*", ROUTER, True),
        ("*.mlp", ROUTER, False),
    ],
)
def test_what_names_a_layer(pattern: str, layer: str, names: bool) -> None:
    decided = plan(mixtral(), {pattern: "fp8_weight_only"})[layer]
    assert decided.method == ("fp8_weight_only" if names else "none")
    assert decided.decided_by == ("rule" if names else "protection")


@pytest.mark.parametrize("pattern", ["mtp.0.head", "mtp.{-1}.head", "mtp.{0..3}.head"])
def test_the_only_prediction_layer_is_the_last_one(pattern: str) -> None:
    model = Inventory.from_tensors(
        [
            ("model.layers.0.mlp.down_proj.weight", (256, 512), "BF16"),
            ("mtp.fc.weight", (256, 512), "BF16"),
            ("mtp.lm_head.weight", (1024, 256), "BF16"),
        ],
        config={"model_type": "of no family"},
    )
    assert plan(model, {pattern: "fp8"})["mtp.lm_head"].method == "fp8"


@pytest.mark.parametrize("layer", [HEAD, EMBEDDING, ROUTER])
def test_a_rule_by_kind_names_the_layers_of_that_kind(layer: str) -> None:
    rules = [{"kind": ["head", "embedding", "router"], "method": "fp8_weight_only"}]
    assert plan(mixtral(), rules)[layer].method == "fp8_weight_only"
    assert plan(mixtral(), [{"match": "*", **rules[0]}])[layer].method == "fp8_weight_only"


@pytest.mark.parametrize("layer", [HEAD, EMBEDDING, ROUTER])
@pytest.mark.parametrize("pattern", ["*", r"re:.*", "{*,absent}"])
def test_none_always_reaches(layer: str, pattern: str) -> None:
    named = {"lm_head": "fp8", "*.embed_tokens": "fp8_weight_only", "*.gate": "fp8"}
    resolved = plan(mixtral(), {**named, pattern: "none"})
    assert (resolved[layer].method, resolved[layer].decided_by) == ("none", "rule")


@pytest.mark.parametrize("default", ["fp8", "fp8_weight_only"])
def test_the_default_is_stopped_too(default: str) -> None:
    resolved = plan(mixtral(), default=default)
    assert resolved["model.layers.0.self_attn.o_proj"].method == default
    assert [resolved[layer].method for layer in (HEAD, EMBEDDING, ROUTER)] == ["none"] * 3


@pytest.mark.parametrize(
    ("layers", "weight"),
    [
        # A broad rule does not lower the precision of what a named one decided,
        ({"lm_head": "int8", "*": "int4_weight_only"}, ("int8", "channel")),
        ({"lm_head": "int8", "*": {"weight": {"granularity": "tensor"}}}, ("int8", "channel")),
        # another that names it does,
        ({"lm_head": "int8", "*head": "int4_weight_only"}, ("int4", "group")),
        ({"lm_head": "int8", "*head": {"weight": {"granularity": "tensor"}}}, ("int8", "tensor")),
        # and a broad `dequantize` lowers nothing.
        ({"lm_head": "int8", "*": "dequantize"}, None),
    ],
)
def test_precision_of_a_protected_weight(layers: object, weight: tuple[str, str] | None) -> None:
    decided = plan(llama(), layers)[HEAD].scheme.weight
    assert (None if decided is None else (decided.dtype, decided.granularity)) == weight


@pytest.mark.parametrize(
    ("model", "layers", "output"),
    [
        # A broad rule may raise the precision of an output,
        (llama(), {"*": {"output": "fp32"}}, "float32"),
        # but not lower it: below the model's own dtype,
        (t5(), {"*": {"output": "bf16"}}, None),
        (llama(), {"model*": {"output": "fp16"}}, None),
        # or below what a rule that names it has set.
        (llama(), {"lm_head": {"output": "fp32"}, "*": {"output": "bf16"}}, "float32"),
        (llama(), {"lm_head": {"output": "fp32"}, "*": {"output": "none"}}, "float32"),
        # One that names it may.
        (t5(), {"*": {"output": "fp32"}, "lm_*": {"output": "bf16"}}, "bfloat16"),
        (llama(), {"lm_head": {"output": "fp32"}, "lm*": {"output": "none"}}, None),
        # `none` always reaches it.
        (llama(), {"lm_head": {"output": "fp32"}, "*": "none"}, None),
    ],
)
def test_precision_of_a_protected_output(model: Inventory, layers: object, output: str | None) -> None:
    assert plan(model, layers)[HEAD].output == output


def test_a_broad_rule_does_not_quantize_a_protected_output() -> None:
    resolved = plan(llama(), {"*.mlp": "fp8", "*.embed_tokens": {"output": "fp32"}, "model": {"output": "fp8"}})
    assert resolved[EMBEDDING].output == "float32"


# --- what is protected -----------------------------------------------------------------------------------------------


def test_the_list_of_protected_kinds_is_the_policys() -> None:
    assert load_policy({"layers": {}}).protect == {"head", "embedding", "router"}


@pytest.mark.parametrize(
    ("protect", "lifted"),
    [
        (["head", "embedding", "router"], set()),
        (["embedding", "router"], {HEAD}),
        (["router"], {HEAD, EMBEDDING}),
        ([], {HEAD, EMBEDDING}),
    ],
)
def test_leaving_a_kind_out_lifts_its_protection_with_a_note(protect: list[str], lifted: set[str]) -> None:
    resolved = plan(mixtral(), {"*": "fp8_weight_only"}, protect=protect)
    assert {layer for layer in (HEAD, EMBEDDING) if resolved[layer].method != "none"} == lifted
    # Weight methods take a router only if it is named, protected or not.
    assert resolved[ROUTER].method == "none"
    assert len(findings(resolved, "PQ305")) == (1 if len(protect) < 3 else 0)


def test_any_kind_can_be_protected() -> None:
    resolved = plan(llama(), {"*": "fp8", "*.down_proj": "int8"}, protect=["head", "embedding", "router", "linear"])
    assert {layer.method for layer in resolved.layers() if layer.name.endswith("up_proj")} == {"none"}
    assert resolved["model.layers.0.mlp.down_proj"].method == "int8"


@pytest.mark.parametrize(
    ("layers", "cached"),
    [
        # A broad rule does not quantize the cache of a protected attention,
        ({"*": {"kv_cache": "fp8"}}, False),
        ({"model.layers": {"kv_cache": "fp8"}}, False),
        # one that names it does,
        ({"*.self_attn": {"kv_cache": "fp8"}}, True),
        ([{"kind": "attention", "kv_cache": "fp8"}], True),
        # and taking it back lowers nothing.
        ({"*.self_attn": {"kv_cache": "fp8"}, "*": {"kv_cache": "none"}}, False),
    ],
)
def test_a_protected_attention_keeps_its_cache(layers: object, cached: bool) -> None:
    resolved = plan(llama(), layers, protect=["attention"])
    assert (resolved["model.layers.0.self_attn"].kv_cache is not None) == cached


def test_protection_stays_whatever_rules_a_user_adds() -> None:
    resolved = plan(llama(), {"*.mlp": "none"}, default="int8")
    assert (resolved[HEAD].method, resolved[HEAD].decided_by) == ("none", "protection")


# --- what is said about it -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "noted"),
    [("*.g*", True), ("*.block_sparse_moe.g*", True), ("re:.*gate", True), ("*.gate", False), (ROUTER, False)],
)
def test_a_note_says_so_where_a_wildcard_named_a_protected_layer(pattern: str, noted: bool) -> None:
    resolved = plan(mixtral(), {pattern: "fp8"})
    assert resolved[ROUTER].method == "fp8"
    notes = [finding for finding in resolved.findings if finding.code == "PQ303"]
    assert bool(notes) == noted
    assert all(note.level == "note" and "router" in note.message for note in notes)


def head_alone() -> Inventory:
    return Inventory.from_tensors(
        [("lm_head.weight", (1024, 256), "BF16"), ("model.norm.weight", (256,), "BF16")],
        config={"model_type": "llama", "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": False},
    )


@pytest.mark.parametrize(
    ("pattern", "model", "stopped"),
    [
        ("*", llama, False),
        ("model.layers.*", llama, False),
        ("model.layers.{2}.shared_head.*", deepseek, True),
        # Nothing that a weight method could take but the head is left of the model.
        ("*", head_alone, True),
    ],
)
def test_a_rule_is_stopped_only_if_protection_stops_it_everywhere(
    pattern: str, model: Callable[[], Inventory], stopped: bool
) -> None:
    assert bool(findings(plan(model(), {pattern: "fp8"}), "PQ202")) == stopped


def test_a_rule_stopped_everywhere_is_told_how_to_name_what_it_reached() -> None:
    resolved = plan(deepseek(), {"model.layers.2.shared_head.*": "fp8"})
    (warning,) = [finding for finding in resolved.findings if finding.code == "PQ202"]
    assert warning.level == "warning"
    assert "'*.head'" in warning.message
    assert "kind: head" in warning.message
    assert warning.layers == ("model.layers.2.shared_head.head",)


def test_protection_is_the_same_for_a_router_in_a_module_tree() -> None:
    resolved = plan(mixtral_modules(), {"decoder.*.moe": "fp8"})
    assert resolved["model.layers.0.mlp.gate"].decided_by == "protection"
    assert resolved["model.layers.0.mlp.experts"].method == "fp8"
