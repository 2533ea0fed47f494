"""The last rule that reaches a layer wins, always; what "wins" means for a rule that says only part of a scheme."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyquant import Quantization
from policyquant.plan.rows import LayerPlan
from tests.plan.models import codes, deepseek, findings, llama, mixtral, plan, quantized
from tests.plan.reference_precedence import expected_methods

DOWN = "model.layers.0.mlp.down_proj"
UP = "model.layers.0.mlp.up_proj"
ACT = "model.layers.0.mlp.act_fn"
ATTENTION = "model.layers.0.self_attn"
NORM = "model.norm"


def layer(layers: object, name: str = DOWN, /, **keys: object) -> LayerPlan:
    return plan(llama(), layers, **keys)[name]


@pytest.mark.parametrize(
    ("layers", "method"),
    [
        # Rules are read top to bottom; the last that reaches a layer wins.
        ({"*.down_proj": "fp8", "*.mlp": "int8"}, "int8"),
        ({"*.mlp": "int8", "*.down_proj": "fp8"}, "fp8"),
        # Specificity counts for nothing.
        ({DOWN: "fp8", "*": "int8"}, "int8"),
        ({r"re:model\.layers\.0\.mlp\.down_proj": "fp8", "*": "int8"}, "int8"),
        # Nor does it count whether a rule goes by name or by kind.
        ([{"match": DOWN, "method": "fp8"}, {"kind": "linear", "method": "int8"}], "int8"),
        ([{"kind": "linear", "method": "int8"}, {"match": DOWN, "method": "fp8"}], "fp8"),
        # A later rule may decide anew inside a module that an earlier one decided.
        ({"model.layers.0": "none", "*.down_proj": "fp8"}, "fp8"),
        # A rule that does not reach the layer does not count.
        ({"*.down_proj": "fp8", "*.up_proj": "int8"}, "fp8"),
        # Nor does one that it reaches but whose method does not take the layer.
        ([{"match": "*.down_proj", "method": "fp8"}, {"kind": ["norm", "linear"], "method": "none"}], "none"),
        # In a list, a rule reaches what any of its patterns reaches.
        ([{"match": ["*.up_proj", "*.down_proj"], "method": "fp8"}], "fp8"),
        # Pattern and kind must both hold.
        ([{"match": "*", "kind": "norm", "method": "none"}, {"match": "*", "kind": "linear", "method": "fp8"}], "fp8"),
        ([{"match": "*", "kind": "linear", "method": "fp8"}, {"match": "*", "kind": "norm", "method": "none"}], "fp8"),
    ],
)
def test_the_last_rule_that_reaches_a_layer_wins(layers: object, method: str) -> None:
    assert layer(layers).method == method


@pytest.mark.parametrize(
    ("keys", "name", "method", "decided_by"),
    [
        # The default holds where no rule with a method reaches.
        ({"default": "int8"}, DOWN, "int8", "default"),
        ({"default": "int8", "layers": {"*.up_proj": "fp8"}}, DOWN, "int8", "default"),
        # Any rule with a method replaces it.
        ({"default": "int8", "layers": {"*.mlp": "fp8"}}, DOWN, "fp8", "rule"),
        # Without a default it is `none`, and nothing decided it.
        ({"layers": {"*.up_proj": "fp8"}}, DOWN, "none", "nothing"),
        # `none` is a decision; "no rule" is another.
        ({"layers": {"*.down_proj": "none", "*.up_proj": "fp8"}}, DOWN, "none", "rule"),
        ({"default": "none"}, DOWN, "none", "default"),
        # An explicit none never falls through to the default.
        ({"default": "int8", "layers": {"*.down_proj": "none"}}, DOWN, "none", "rule"),
        # A rule that says the same as the default is a decision all the same.
        ({"default": "int8", "layers": {"*.down_proj": "int8"}}, DOWN, "int8", "rule"),
        # A default without a method decides what it sets,
        ({"default": {"kv_cache": "fp8"}}, ATTENTION, "none", "default"),
        ({"default": {"output": "fp32"}}, NORM, "none", "default"),
        # and nothing else.
        ({"default": {"kv_cache": "fp8"}}, NORM, "none", "nothing"),
        ({"default": {"kv_cache": "fp8"}, "layers": {"*.self_attn": {"kv_cache": "none"}}}, ATTENTION, "none", "rule"),
        # The default passes over what its method does not take, as any broad rule does.
        ({"default": "int8"}, NORM, "none", "nothing"),
    ],
)
def test_default_and_no_rule(keys: Mapping[str, Any], name: str, method: str, decided_by: str) -> None:
    decided = plan(llama(), **keys)[name]
    assert (decided.method, decided.decided_by) == (method, decided_by)
    assert (decided.rule is None) == (decided_by != "rule")


# --- rules that say part of a scheme ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "input_group"),
    [
        # A rule without a method refines what stands.
        ([{"match": "*.mlp", "method": "fp8_block"}, {"match": "*.down_proj", "input": {"group": 64}}], 64),
        # The last refinement holds.
        (
            [
                {"match": "*.mlp", "method": "fp8_block"},
                {"match": "*.down_proj", "input": {"group": 64}},
                {"match": "*.down_proj", "input": {"group": 32}},
            ],
            32,
        ),
        # A rule with a method replaces method, weight and input, afresh: nothing of a refinement is left.
        (
            [
                {"match": "*.mlp", "method": "fp8_block"},
                {"match": "*.down_proj", "input": {"group": 64}},
                {"match": "*.mlp", "method": "fp8_block"},
            ],
            128,
        ),
        # A method and a refinement of it may stand in one rule.
        ([{"match": "*.mlp", "method": "fp8_block", "input": {"group": 32}}], 32),
    ],
)
def test_a_rule_without_a_method_refines_what_stands(layers: object, input_group: int) -> None:
    decided = layer(layers)
    assert decided.method == "fp8_block"
    assert decided.scheme.input is not None
    assert decided.scheme.input.group == input_group


def test_refining_one_side_leaves_the_other() -> None:
    refined = layer(
        [
            {"match": "*.mlp", "method": "fp8", "input": {"scheme": "static"}},
            {"match": "*.down_proj", "weight": {"granularity": "tensor"}},
        ]
    )
    assert refined.scheme.weight == Quantization("float8_e4m3fn", "tensor")
    assert refined.scheme.input == Quantization("float8_e4m3fn", "tensor", scheme="static")


def test_a_rule_without_a_method_refines_the_default_too() -> None:
    refined = layer({"*.down_proj": {"input": {"group": 64}}}, default="fp8_block")
    assert (refined.decided_by, refined.rule) == ("default", None)
    assert refined.scheme.input is not None
    assert refined.scheme.input.group == 64
    assert [rule.pattern for rule in refined.refined_by] == ["*.down_proj"]


@pytest.mark.parametrize(
    ("layers", "name", "why"),
    [
        ({"*.down_proj": "fp8", "*": {"input": {"group": 64}}, "*.up_proj": "fp8_block"}, DOWN, "fields do not apply"),
        ({"*.mlp": "fp8_block", DOWN: "none", "*": {"input": {"group": 64}}}, DOWN, "the layer is at none"),
        ({"*.mlp": "fp8_block", "lm_head": "fp8_block", "*": {"input": {"group": 64}}}, "lm_head", "it is protected"),
    ],
)
def test_a_refinement_passes_over(layers: Mapping[str, Any], name: str, why: str) -> None:
    without = {pattern: scheme for pattern, scheme in layers.items() if not isinstance(scheme, dict)}
    assert plan(llama(), layers)[name].scheme == plan(llama(), without)[name].scheme, why


@pytest.mark.parametrize(
    ("layers", "error"),
    [
        # If nothing remains for it to refine, that is an error: everything is at none,
        ({"*.mlp": {"input": {"group": 64}}}, True),
        # or takes no such field,
        ({"*.mlp": "fp8", "*.down_proj": {"input": {"group": 64}}}, True),
        # or is protected and not named.
        ({"lm_head": "fp8_block", "lm*": "fp8_block", "*": {"input": {"group": 64}}}, True),
        # One layer is enough.
        ({"*.up_proj": "fp8_block", "*.gate_proj": "fp8_block", "*": {"input": {"group": 64}}}, False),
    ],
)
def test_a_refinement_with_nothing_to_refine_is_an_error(layers: object, error: bool) -> None:
    assert ("PQ104" in codes(plan(llama(), layers), "error")) == error


# --- output and kv_cache ---------------------------------------------------------------------------------------------


def output(layers: object, name: str = UP) -> object:
    return layer(layers, name).output


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        # They keep the last value given,
        ({"*.up_proj": {"output": "fp16"}, "*.mlp": {"output": "fp32"}}, "float32"),
        # whatever methods come later,
        ({"*.up_proj": {"output": "fp32"}, "*.mlp": "fp8"}, "float32"),
        ({"*.up_proj": {"method": "fp8", "output": "fp32"}, "*.mlp": "int8"}, "float32"),
        # and whatever refines.
        ({"*.mlp": {"method": "fp8_block", "output": "fp32"}, "*": {"input": {"group": 64}}}, "float32"),
        # `none` resets them on every layer that it reaches;
        ({"*.mlp": {"output": "fp32"}, "*.up_proj": "none"}, None),
        ({"*.mlp": {"output": "fp32"}, "*": "none"}, None),
        # elsewhere it does not;
        ({"*.mlp": {"output": "fp32"}, "*.down_proj": "none"}, "float32"),
        # a later rule may set them again,
        ({"*.up_proj": "none", "*.mlp": {"output": "fp32"}}, "float32"),
        # or the same rule.
        ({"*.up_proj": {"method": "none", "output": "fp32"}}, "float32"),
        # `output: none` takes an earlier one back.
        ({"*.mlp": {"output": "fp32"}, "*.up_proj": {"output": "none"}}, None),
    ],
)
def test_output_is_a_field_of_its_own(layers: object, expected: str | None) -> None:
    assert output(layers) == expected


@pytest.mark.parametrize(
    ("layers", "cached"),
    [
        ({"*.self_attn": {"kv_cache": "fp8"}}, True),
        ({"*.self_attn": {"kv_cache": "fp8"}, "*": "fp8"}, True),
        ({"*.self_attn": {"kv_cache": "fp8"}, "*": "none"}, False),
        ({"*.self_attn": {"kv_cache": "fp8"}, "model.layers.1": "none"}, True),
        ({"*.self_attn": {"method": "none", "kv_cache": "fp8"}}, True),
        ({"*.self_attn": "none", "model": {"kv_cache": "fp8"}}, True),
        ({"*.self_attn": {"kv_cache": "fp8"}, "*": {"kv_cache": "none"}}, False),
    ],
)
def test_kv_cache_is_a_field_of_its_own(layers: object, cached: bool) -> None:
    assert (layer(layers, ATTENTION).kv_cache is not None) == cached


def test_a_cache_that_says_only_its_dtype_has_one_static_scale() -> None:
    decided = layer({"*.self_attn": {"kv_cache": "fp8"}}, ATTENTION)
    assert decided.kv_cache == Quantization("float8_e4m3fn", "tensor", scheme="static")
    assert decided.decided_by == "rule"


def test_a_rule_may_set_an_output_without_touching_what_decided_the_weight() -> None:
    decided = layer({"*.mlp": "fp8", UP: {"output": "fp32"}}, UP)
    assert decided.rule is not None
    assert (decided.rule.pattern, [rule.pattern for rule in decided.refined_by]) == ("*.mlp", [UP])


# --- provenance ------------------------------------------------------------------------------------------------------


def test_a_plan_says_which_rule_won_and_which_it_beat() -> None:
    decided = layer({"*": "int8", "*.mlp": "fp8", "*.up_proj": "none", "*.down_proj": "fp8_block"})
    assert decided.rule is not None
    assert decided.rule.pattern == "*.down_proj"
    assert [rule.pattern for rule in decided.beaten] == ["*", "*.mlp"]


def test_a_rule_that_passed_over_a_layer_was_not_beaten_there() -> None:
    decided = layer({"*": {"method": "int8"}, "model": "none"}, NORM)
    assert decided.rule is not None
    assert (decided.rule.pattern, decided.beaten) == ("model", ())


# --- layers that are stored quantized --------------------------------------------------------------------------------

STORED = "model.layers.1.mlp.shared_experts.up_proj"


def test_none_leaves_a_layer_as_stored_and_its_stored_scheme_is_what_counts() -> None:
    left = plan(deepseek("F8_E4M3"), {"*": "none"})[STORED]
    assert (left.method, left.dtype, left.stored) == ("none", "F8_E4M3", "fp8_block: F8_E4M3, block 128x128")
    assert left.bytes_after == left.bytes_before == 512 * 256 + 4 * (4 * 2)


def test_dequantize_turns_a_layer_into_the_models_dtype() -> None:
    resolved = plan(deepseek("F8_E4M3"), {"*.shared_experts": "dequantize"})
    assert (resolved[STORED].method, resolved[STORED].bytes_after) == ("dequantize", 2 * 512 * 256)
    assert findings(resolved, "PQ306") == []


@pytest.mark.parametrize("method", ["fp8", "fp8_block", "int4_weight_only"])
def test_any_other_method_requantizes_with_a_note(method: str) -> None:
    resolved = plan(deepseek("F8_E4M3"), {"*.shared_experts": method, "lm_head": method})
    assert resolved[STORED].method == method
    (note,) = [finding for finding in resolved.findings if finding.code == "PQ306"]
    assert note.level == "note"
    # Of these alone: the head is stored in BF16.
    assert {name.rpartition(".")[0].rpartition(".")[2] for name in note.layers} == {"shared_experts"}


# --- properties ------------------------------------------------------------------------------------------------------

_PATTERNS = [
    "*",
    "model",
    "*.mlp",
    "*.qkv_proj",
    "*.gate",
    "*.g*",
    "lm_head",
    "model.layers.{0}",
    "model.layers.{-1}",
    "model.layers.1.self_attn.o_proj",
    "decoder.*.moe",
    "decoder.*.moe.router",
    "*.experts.{0..1}",
    "*.w?",
    r"re:.*o_proj",
    r"re:.*\.experts\.[23]\.w[13]",
    "*.embed_tokens",
    "absent",
]
_METHODS = ["none", "fp8", "int8", "fp8_weight_only", "dequantize"]
_KINDS = [None, "linear", "router", ["moe", "linear"], ["head", "norm"]]
_RULES = st.lists(
    st.builds(
        lambda pattern, kind, method: {
            "match": pattern,
            "method": method,
            **({} if kind is None else {"kind": kind}),
        },
        st.sampled_from(_PATTERNS),
        st.sampled_from(_KINDS),
        st.sampled_from(_METHODS),
    ),
    max_size=6,
)
_DEFAULTS = st.sampled_from([None, "none", "int8", "fp8_weight_only"])
_PROTECT = st.sampled_from([None, [], ["head"], ["head", "embedding", "router"], ["linear"]])


def _keys(default: str | None, protect: list[str] | None) -> dict[str, object]:
    return {k: v for k, v in (("default", default), ("protect", protect)) if v is not None}


@given(rules=_RULES, default=_DEFAULTS, protect=_PROTECT)
def test_every_layer_is_decided_as_a_reading_of_the_rules_one_by_one_decides_it(
    rules: list[dict[str, Any]], default: str | None, protect: list[str] | None
) -> None:
    resolved = plan(mixtral(), rules, **_keys(default, protect))
    wanted = expected_methods(mixtral(), rules, default=default, protect=protect)
    assert {each.name: each.method for each in resolved.layers()} == wanted


@given(rules=_RULES, default=_DEFAULTS)
def test_a_rule_changes_only_layers_that_it_reaches(rules: list[dict[str, Any]], default: str | None) -> None:
    more = [*rules, {"match": "model.layers.1.self_attn", "method": "int8"}]
    before, after = (plan(mixtral(), each, **_keys(default, None)) for each in (rules, more))
    for each in before.layers():
        if not each.name.startswith("model.layers.1.self_attn"):
            assert after[each.name].scheme == each.scheme


@given(rules=_RULES, default=_DEFAULTS)
def test_a_last_none_for_everything_leaves_nothing_quantized(rules: list[dict[str, Any]], default: str | None) -> None:
    resolved = plan(mixtral(), [*rules, {"match": "*", "method": "none"}], **_keys(default, None))
    assert quantized(resolved) == set()
    assert all(each.decided_by == "rule" for each in resolved.layers())


@given(
    order=st.permutations(
        [
            ("*.self_attn", "int8"),
            ("*.block_sparse_moe", "fp8"),
            ("lm_head", "fp8_weight_only"),
            ("*.embed_tokens", "int8_weight_only"),
            (r"re:.*norm.*", "none"),
        ]
    )
)
def test_the_order_of_rules_that_share_no_layer_does_not_matter(order: list[tuple[str, str]]) -> None:
    schemes = {each.name: each.scheme for each in plan(mixtral(), dict(order)).layers()}
    assert schemes == {each.name: each.scheme for each in plan(mixtral(), dict(sorted(order))).layers()}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("*.w1", "*.[w]1"),
        ("*.w1", "*.{w1}"),
        ("*.w1", "**.w1"),
        ("*.w1", r"*.\w1"),
        ("*.w1", r"re:.*\.w1"),
        ("*.w1", r"re:(.*)[.]w1"),
        ("model.layers.{0..1}.block_sparse_moe", "model.layers.?.block_sparse_moe"),
        ("model.layers.{-1}", "model.layers.1"),
        ("model.layers.0", "model.layers.0.*"),
    ],
)
@pytest.mark.parametrize("last", [True, False])
def test_renaming_a_pattern_to_an_equivalent_one_changes_nothing(one: str, other: str, last: bool) -> None:
    def schemes(pattern: str) -> dict[str, object]:
        rules = [(pattern, "fp8"), ("*.experts", "int8")]
        return {each.name: each.scheme for each in plan(mixtral(), dict(rules if not last else rules[::-1])).layers()}

    # A module's own layers (attention, norms) take no fp8, so covering and naming give the same schemes.
    assert schemes(one) == schemes(other)
