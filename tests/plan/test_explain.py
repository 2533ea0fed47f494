"""`plan.explain(name)`: every rule in order, what each did to the layer and why, and what the layer belongs to."""

from __future__ import annotations

import pytest

from policyquant import Inventory
from policyquant.plan.explain import Explanation
from tests.plan.models import deepseek, llama, mixtral, mixtral_modules, phi3, plan, qwen2_5_vl, t5, tied_llama

DOWN = "model.layers.0.mlp.down_proj"


def outcomes(explanation: Explanation) -> list[tuple[str, str]]:
    (part,) = explanation.parts
    return [(rule.text, rule.outcome) for rule in part.rules]


@pytest.mark.parametrize(
    ("keys", "name", "expected"),
    [
        (
            {"layers": {"*": "int8", "*.up_proj": "fp8", "*.down_proj": "fp8"}},
            DOWN,
            [("*", "overruled"), ("*.up_proj", "does not reach"), ("*.down_proj", "decides")],
        ),
        # The default comes first.
        ({"default": "int8", "layers": {"*.mlp": "fp8"}}, DOWN, [("default", "overruled"), ("*.mlp", "decides")]),
        (
            {"default": "int8", "layers": {"*.up_proj": "fp8"}},
            DOWN,
            [("default", "decides"), ("*.up_proj", "does not reach")],
        ),
        # It may set only something besides,
        (
            {"default": {"method": "int8", "output": "fp32"}, "layers": {"*.mlp": "fp8"}},
            DOWN,
            [("default", "sets"), ("*.mlp", "decides")],
        ),
        (
            {"default": {"method": "int8", "output": "fp32"}, "layers": {"*": "none"}},
            DOWN,
            [("default", "overruled"), ("*", "decides")],
        ),
        # or decide by that alone.
        ({"default": {"kv_cache": "fp8"}}, "model.layers.0.self_attn", [("default", "decides")]),
        # Refinements, outputs and caches set something besides.
        (
            {"layers": {"*.mlp": "fp8_block", "*.down_proj": {"input": {"group": 64}}, DOWN: {"output": "fp16"}}},
            DOWN,
            [("*.mlp", "decides"), ("*.down_proj", "sets"), (DOWN, "sets")],
        ),
        (
            {"layers": {"*.mlp": "fp8_block", "*.down_proj": {"input": {"group": 64}}, "model": "fp8"}},
            DOWN,
            [("*.mlp", "overruled"), ("*.down_proj", "overruled"), ("model", "decides")],
        ),
        # A rule may pass over a layer that it reaches,
        ({"layers": {"*": "fp8"}}, "model.norm", [("*", "passes over")]),
        (
            {"layers": {"*.mlp": "fp8", "*": {"input": {"group": 64}}}},
            DOWN,
            [("*.mlp", "decides"), ("*", "passes over")],
        ),
        # or be stopped by protection.
        (
            {"layers": {"*": "fp8", "lm_head": "int8"}},
            "lm_head",
            [("*", "stopped by protection"), ("lm_head", "decides")],
        ),
        ({"default": "fp8"}, "lm_head", [("default", "stopped by protection")]),
        # A rule by kind has no pattern.
        ({"layers": [{"kind": ["norm", "linear"], "method": "none"}]}, DOWN, [("kind: linear, norm", "decides")]),
        # Of several patterns the one that reached is shown.
        ({"layers": [{"match": ["*.absent", "*.mlp"], "method": "fp8"}]}, DOWN, [("*.mlp", "decides")]),
    ],
)
def test_every_rule_in_order(keys: dict[str, object], name: str, expected: list[tuple[str, str]]) -> None:
    assert outcomes(plan(llama(), **keys).explain(name)) == expected


@pytest.mark.parametrize(
    ("layers", "name", "reason"),
    [
        ({"*": "fp8"}, "model.norm", "fp8 does not take norm layers"),
        ({"*": "fp8"}, "lm_head", "head layers are protected"),
        ({"*": {"kv_cache": "fp8"}}, DOWN, "linear layers have no KV cache"),
        ({"*": {"input": {"group": 64}}}, DOWN, "nothing stands here"),
        ({"*": "int8", "model": {"input": {"group": 64}}}, DOWN, "int8"),
    ],
)
def test_a_rule_that_did_nothing_says_why(layers: dict[str, object], name: str, reason: str) -> None:
    (part,) = plan(llama(), layers).explain(name).parts
    assert reason in part.rules[-1].reason


@pytest.mark.parametrize(
    ("pattern", "namespace", "names"),
    [
        ("model.layers.0.block_sparse_moe.gate", "checkpoint", True),
        ("*.block_sparse_moe", "checkpoint", False),
        ("*.mlp.gate", "module", True),
        ("decoder.*.moe", "canonical", False),
    ],
)
def test_the_namespace_of_a_pattern_and_whether_it_names_the_layer(pattern: str, namespace: str, names: bool) -> None:
    (part,) = plan(mixtral(), {pattern: "fp8"}).explain("model.layers.0.block_sparse_moe.gate").parts
    assert (part.rules[0].namespace, part.rules[0].names) == (namespace, names)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (mixtral(), "model.layers.1.block_sparse_moe.gate"),
        (mixtral(), "model.layers.1.mlp.gate"),
        (mixtral(), "decoder.1.moe.router"),
        (mixtral_modules(), "model.layers.1.block_sparse_moe.gate"),
        (mixtral_modules(), "model.layers.1.mlp.gate"),
    ],
)
def test_any_name_of_a_layer_will_do(model: Inventory, name: str) -> None:
    resolved = plan(model, {"*.experts": "fp8"})
    layer = resolved[name]
    assert layer.kind == "router"
    assert layer.name.startswith("model.layers.1.")
    assert resolved.explain(name).layer == layer


def test_all_names_of_a_layer_are_listed() -> None:
    (part,) = plan(mixtral(), {"*": "fp8"}).explain("model.layers.1.block_sparse_moe.experts.2.w1").parts
    experts = "model.layers.1.block_sparse_moe.experts"
    assert part.names["checkpoint"] == (f"{experts}.2.w1", f"{experts}.2.gate_up_proj")
    assert part.names["module"] == ("model.layers.1.mlp.experts.gate_up_proj", "model.layers.1.mlp.experts")
    assert part.names["canonical"] == (
        "decoder.1.moe.experts.gate_proj",
        "decoder.1.moe.experts.gate_up_proj",
        "decoder.1.moe.experts",
    )


@pytest.mark.parametrize(
    "name", ["model.layers.9.mlp", "model.layers.0.mlp", "absent", "", "model.layers.#.mlp.up_proj"]
)
def test_an_unknown_name_is_a_key_error(name: str) -> None:
    resolved = plan(llama(), {"*": "fp8"})
    assert name not in resolved
    with pytest.raises(KeyError):
        resolved[name]


def test_a_misspelled_name_gets_the_nearest() -> None:
    with pytest.raises(KeyError, match=r"did you mean 'model\.layers\.1\.mlp\.down_proj'"):
        plan(llama(), {"*": "fp8"})["model.layers.1.mlp.down_prj"]


@pytest.mark.parametrize(("name", "protected"), [("lm_head", True), ("model.embed_tokens", True), (DOWN, False)])
def test_protection_is_visible(name: str, protected: bool) -> None:
    assert plan(llama(), {"*": "fp8"}).explain(name).protected == protected


# --- what a layer belongs to -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "name", "group"),
    [
        (
            llama(),
            "model.layers.1.self_attn.k_proj",
            {f"model.layers.1.self_attn.{x}_proj" for x in "qkv"},
        ),
        (llama(), "model.layers.1.self_attn.o_proj", set()),
        (
            deepseek(),
            "model.layers.2.self_attn.q_a_proj",
            {"model.layers.2.self_attn.q_a_proj", "model.layers.2.self_attn.kv_a_proj_with_mqa"},
        ),
        (
            mixtral(),
            "model.layers.0.block_sparse_moe.experts.3.w1",
            {f"model.layers.0.block_sparse_moe.experts.{{0..3}}.w{i}" for i in (1, 3)},
        ),
        (
            mixtral(),
            "model.layers.0.block_sparse_moe.experts.3.w2",
            {"model.layers.0.block_sparse_moe.experts.{0..3}.w2"},
        ),
    ],
)
def test_the_fused_group(model: Inventory, name: str, group: set[str]) -> None:
    assert set(plan(model, {"*": "fp8"}).explain(name).group) == group


@pytest.mark.parametrize(
    ("name", "feeds"),
    [
        ("model.layers.1.mlp.act_fn", {"model.layers.1.mlp.down_proj"}),
        ("model.layers.1.input_layernorm", {f"model.layers.1.self_attn.{x}_proj" for x in "qkv"}),
        ("model.layers.1.self_attn", {"model.layers.1.self_attn.o_proj"}),
        ("model.layers.1.mlp.down_proj", set()),
        ("model.norm", {"lm_head"}),
    ],
)
def test_what_a_layer_feeds(name: str, feeds: set[str]) -> None:
    resolved = plan(llama(), {"*": "fp8"})
    assert set(resolved.explain(name).feeds or ()) == feeds
    for reader in feeds:
        assert name in resolved.explain(reader).fed_by


def test_ties_are_shown_from_both_sides() -> None:
    resolved = plan(tied_llama(), {"lm_head": "int8_weight_only"})
    assert resolved.explain("lm_head").tied_to == "model.embed_tokens"
    assert resolved.explain("model.embed_tokens").tied_by == ("lm_head",)
    assert set(plan(t5(), default="none").explain("shared").tied_by) == {
        "encoder.embed_tokens",
        "decoder.embed_tokens",
        "lm_head",
    }


# --- parts -----------------------------------------------------------------------------------------------------------


def test_a_layer_that_stores_several_things_is_explained_part_by_part() -> None:
    explained = plan(qwen2_5_vl(), {"*.qkv_proj": "fp8", "visual.blocks.0.attn.v_proj": "none"}).explain(
        "visual.blocks.0.attn.qkv"
    )
    assert [part.name for part in explained.parts] == [f"visual.blocks.0.attn.{x}_proj" for x in "qkv"]
    assert [[rule.outcome for rule in part.rules] for part in explained.parts] == [
        ["decides", "does not reach"],
        ["decides", "does not reach"],
        ["overruled", "decides"],
    ]


def test_experts_of_one_tensor_that_are_decided_differently_are_shown_apart() -> None:
    layers = {"*.experts": "fp8", "model.layers.0.block_sparse_moe.experts.2.w2": "none"}
    explained = plan(mixtral_modules(), layers).explain("model.layers.0.block_sparse_moe.experts")
    down = [part.name for part in explained.parts if part.name.endswith("w2")]
    assert down == [f"model.layers.0.block_sparse_moe.experts.{i}.w2" for i in (0, 2)]


def test_parts_are_found_by_their_own_names() -> None:
    resolved = plan(phi3(), {"*.qkv_proj": "fp8"})
    assert resolved["model.layers.0.self_attn.k_proj"].name == "model.layers.0.self_attn.qkv_proj"
