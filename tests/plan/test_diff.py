"""What differs between two plans: of two policies, of two models, of a lock and today's policy."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyquant import Plan
from policyquant.plan.diff import COMPARED, Difference, PlanDiff, diff_plans
from policyquant.plan.read import parse_plan
from policyquant.plan.rows import LayerPlan
from tests.plan.models import deepseek, inventory, llama, llama_without_shapes, mixtral, plan


def names(differences: tuple[Difference, ...]) -> list[str]:
    return [name for each in differences for name, _ in each.spans]


def test_a_plan_does_not_differ_from_itself() -> None:
    resolved = plan(mixtral(), {"*.moe": "fp8"})
    diff = diff_plans(resolved, resolved)
    assert not diff
    assert (diff.changed, diff.removed, diff.added) == ((), (), ())


@pytest.mark.parametrize("model", ["DeepSeek-V3", "gpt-oss-120b", "t5-small"])
def test_a_plan_does_not_differ_from_what_its_file_says(model: str) -> None:
    resolved = plan(inventory(model), {"*.moe": "fp8", "*.self_attn": {"kv_cache": "fp8"}})
    assert not diff_plans(resolved, parse_plan(resolved.to_json().encode(), "plan.json"))


def test_two_policies_on_one_model() -> None:
    before = plan(mixtral(), {"*": "fp8"})
    after = plan(mixtral(), {"*": "fp8", "*.moe": "int8", "*.layers.1": "none"})
    found = [
        (*each.spans, each.before.scheme.method, each.after.scheme.method)
        for each in diff_plans(before, after).changed
        if each.before and each.after
    ]
    assert found == [
        (("model.layers.1.self_attn.q_proj", 1), "fp8", "none"),
        (("model.layers.1.self_attn.k_proj", 1), "fp8", "none"),
        (("model.layers.1.self_attn.v_proj", 1), "fp8", "none"),
        (("model.layers.1.self_attn.o_proj", 1), "fp8", "none"),
        (("model.layers.0.block_sparse_moe.experts.{0..3}.w1", 4), "fp8", "int8"),
        (("model.layers.1.block_sparse_moe.experts.{0..3}.w1", 4), "fp8", "none"),
        (("model.layers.0.block_sparse_moe.experts.{0..3}.w2", 4), "fp8", "int8"),
        (("model.layers.1.block_sparse_moe.experts.{0..3}.w2", 4), "fp8", "none"),
        (("model.layers.0.block_sparse_moe.experts.{0..3}.w3", 4), "fp8", "int8"),
        (("model.layers.1.block_sparse_moe.experts.{0..3}.w3", 4), "fp8", "none"),
    ]


def test_each_difference_says_who_decided_and_what_it_takes_in_bytes() -> None:
    before = plan(llama(), {"*.mlp": "fp8"})
    after = plan(llama(), {"*.mlp": "fp8", "*.down_proj": "int4_weight_only"})
    (only,) = diff_plans(before, after).changed
    assert only.before is not None
    assert only.after is not None
    assert (only.before.rule and only.before.rule.pattern, only.after.rule and only.after.rule.pattern) == (
        "*.mlp",
        "*.down_proj",
    )
    # Two layers of 256 x 512: FP8 with a float32 scale a row; INT4 with a bfloat16 scale for each group of 128.
    assert only.bytes_before == 2 * (256 * 512 + 256 * 4)
    assert only.bytes_after == 2 * (256 * 512 // 2 + 256 * 512 // 128 * 2)


def test_the_same_decision_by_another_rule_is_no_difference() -> None:
    assert not diff_plans(plan(llama(), {"*.mlp": "fp8"}), plan(llama(), [{"match": "decoder.*.mlp", "method": "fp8"}]))


@pytest.mark.parametrize(
    ("refinement", "fields"),
    [
        ({"*.down_proj": {"input": {"scheme": "static"}}}, ("input",)),
        ({"*.down_proj": {"weight": {"granularity": "tensor"}}}, ("weight",)),
        ({"*.down_proj": {"weight": {"granularity": "tensor"}, "output": "fp32"}}, ("weight", "output")),
        ({"*.self_attn": {"kv_cache": "fp8"}}, ("kv_cache",)),
        ({"*.down_proj": "fp8_weight_only"}, ("method", "input")),
        ({"*.down_proj": "none"}, ("method", "weight", "input")),
    ],
)
def test_what_differs_is_named(refinement: dict[str, Any], fields: tuple[str, ...]) -> None:
    base = {"*": "fp8"}
    (only,) = diff_plans(plan(llama(), base), plan(llama(), {**base, **refinement})).changed
    assert only.fields == fields
    assert only.count == 2


def test_layers_of_one_model_only() -> None:
    diff = diff_plans(plan(llama(blocks=2), {"*.mlp": "fp8"}), plan(llama(blocks=4), {"*.mlp": "fp8"}))
    assert (diff.changed, diff.removed) == ((), ())
    assert "model.layers.{2..3}.mlp.down_proj" in names(diff.added)
    assert sum(each.count for each in diff.added) == diff.after.total.layers - diff.before.total.layers
    back = diff_plans(plan(llama(blocks=4), {"*.mlp": "fp8"}), plan(llama(blocks=2), {"*.mlp": "fp8"}))
    assert names(back.removed) == names(diff.added)


def test_two_models_of_other_sizes_and_other_storage() -> None:
    bigger = diff_plans(plan(llama(), {"*": "fp8"}), plan(llama(inner=1024), {"*": "fp8"}))
    assert {each.fields for each in bigger.changed} == {("shape",)}
    assert names(bigger.changed) == [f"model.layers.{{0..1}}.mlp.{name}_proj" for name in ("gate", "up", "down")]
    stored = diff_plans(plan(deepseek()), plan(deepseek("F8_E4M3")))
    assert {each.fields for each in stored.changed} == {("dtype", "stored")}


def test_unknown_sizes_stay_unknown() -> None:
    diff = diff_plans(plan(llama_without_shapes()), plan(llama_without_shapes(), {"*.mlp": "fp8"}))
    assert {(each.bytes_before, each.bytes_after) for each in diff.changed} == {(None, None)}


def test_the_json_says_the_same() -> None:
    diff = diff_plans(plan(llama(blocks=1), {"*.mlp": "fp8"}), plan(llama(), {"*.down_proj": "fp8"}))
    document = json.loads(json.dumps(diff.as_json()))
    assert [each["layers"] for each in document["changed"]] == [
        list(dict.fromkeys(name for name, _ in each.spans)) for each in diff.changed
    ]
    assert document["changed"][0]["before"]["method"] == "fp8"
    assert document["changed"][0]["after"]["method"] == "none"
    assert document["before"]["bytes"] == diff.before.total.bytes_after
    assert all(each["before"] is None for each in document["added"])


# --- against going through every layer -------------------------------------------------------------------------------

rules = st.lists(
    st.tuples(
        st.sampled_from(
            ["*", "*.moe", "*.qkv_proj", "*.layers.1", "*.experts.{1..2}", "*.w2", "*.layers.{1..-1}", "*.self_attn"]
        ),
        st.sampled_from(["fp8", "int8", "none", {"kv_cache": "fp8"}, {"input": {"scheme": "static"}}]),
    ),
    max_size=4,
    unique_by=lambda rule: rule[0],
)  # fmt: skip


def one_by_one(before: Plan, after: Plan) -> dict[str, tuple[str, ...]]:
    """Name of each layer that differs → what does."""

    def value(layer: LayerPlan, name: str) -> object:
        return getattr(layer if name in ("kind", "shape", "dtype", "stored") else layer.scheme, name)

    ours, theirs = ({layer.name: layer for layer in each.layers()} for each in (before, after))
    found: dict[str, tuple[str, ...]] = {}
    for name in {**ours, **theirs}:
        if name in ours and name in theirs:
            fields = tuple(each for each in COMPARED if value(ours[name], each) != value(theirs[name], each))
            if fields:
                found[name] = fields
        else:
            found[name] = ("only before" if name in ours else "only after",)
    return found


def unfolded(diff: PlanDiff) -> dict[str, tuple[str, ...]]:
    """The same from a folded difference: a span of names is a brace expression of numbers."""
    found: dict[str, tuple[str, ...]] = {}
    for part, word in ((diff.changed, ""), (diff.removed, "only before"), (diff.added, "only after")):
        for each in part:
            for span, count in each.spans:
                members = expanded(span)
                assert len(members) == count
                assert not set(members) & set(found)
                found.update(dict.fromkeys(members, (word,) if word else each.fields))
    return found


def expanded(span: str) -> list[str]:
    if "{" not in span:
        return [span]
    before, _, rest = span.partition("{")
    inside, _, after = rest.partition("}")
    numbers: list[int] = []
    for item in inside.split(","):
        first, _, last = item.partition("..")
        numbers += range(int(first), int(last or first) + 1)
    return [f"{before}{number}{tail}" for number in numbers for tail in expanded(after)]


@given(rules, rules, st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_folded_plans_differ_as_their_layers_do(
    first: list[Any], second: list[Any], blocks: int, other_blocks: int, from_file: bool
) -> None:
    before, after = plan(mixtral(blocks), dict(first)), plan(mixtral(other_blocks), dict(second))
    if from_file:
        after = parse_plan(after.to_json().encode(), "plan.json")
    diff = diff_plans(before, after)
    assert unfolded(diff) == one_by_one(before, after)
    assert bool(diff) == bool(unfolded(diff))
