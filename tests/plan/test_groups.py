"""Fused groups: layers that run as one must agree, judged over the members that exist."""

from __future__ import annotations

import pytest

from policyquant import Inventory
from tests.plan.models import codes, deepseek, findings, inventory, llama, mixtral, phi3, plan, qwen2_5_vl, t5


@pytest.mark.parametrize(
    ("model", "pattern", "agree"),
    [
        # q/k/v of one self-attention,
        (llama(), "model.layers.0.self_attn.q_proj", False),
        (llama(), "model.layers.0.self_attn.[qk]_proj", False),
        (llama(), "model.layers.0.self_attn.[qkv]_proj", True),
        (llama(), "model.layers.0.self_attn.qkv_proj", True),
        (t5(), "*.SelfAttention.q", False),
        # not of cross-attention;
        (t5(), "*.EncDecAttention.q", True),
        # each attention for itself;
        (llama(), "model.layers.0.self_attn", True),
        (llama(), "*.o_proj", True),
        # q_a and kv_a of latent attention,
        (deepseek(), "*.q_a_proj", False),
        (deepseek(), "*.kv_a_proj_with_mqa", False),
        (deepseek(), "*.{q_a_proj,kv_a_proj_with_mqa}", True),
        (deepseek(), "*.q_b_proj", True),
        (deepseek(), "*.kv_b_proj", True),
        # gate/up of one MLP,
        (llama(), "model.layers.1.mlp.gate_proj", False),
        (llama(), "model.layers.1.mlp.{gate,up}_proj", True),
        (llama(), "*.down_proj", True),
        (deepseek(), "*.shared_experts.up_proj", False),
        (deepseek(), "*.shared_experts.{gate,up}_proj", True),
        (qwen2_5_vl(), "visual.blocks.2.mlp.up_proj", False),
        # gate/up of all routed experts of one MoE,
        (mixtral(), "*.w1", False),
        (mixtral(), "*.w[13]", True),
        (mixtral(), "model.layers.0.block_sparse_moe.experts.{0}.w[13]", False),
        (mixtral(), "model.layers.0.block_sparse_moe.experts.*.w[13]", True),
        # down of all routed experts of one MoE,
        (mixtral(), "*.w2", True),
        (mixtral(), "model.layers.1.*.w2", True),
        (mixtral(), "model.layers.1.block_sparse_moe.experts.3.w2", False),
        # and prediction layers like any other.
        (deepseek(), "model.layers.2.mlp.experts.*.up_proj", False),
        (deepseek(), "model.layers.2.mlp.experts.*.{gate,up}_proj", True),
        (deepseek(), "decoder.*.moe.experts", True),
    ],
)
def test_members_must_agree(model: Inventory, pattern: str, agree: bool) -> None:
    resolved = plan(model, {pattern: "fp8"})
    assert codes(resolved, "error") == ([] if agree else ["PQ105"] * len(findings(resolved, "PQ105")))
    assert bool(findings(resolved, "PQ105")) == (not agree)


def test_a_layer_stored_fused_is_its_own_group() -> None:
    assert codes(plan(phi3(), {"*.qkv_proj": "fp8"}), "error") == []


def test_state_space_projections_are_in_no_group() -> None:
    assert codes(plan(inventory("Mamba-Codestral-7B-v0.1"), {"*.in_proj": "fp8"}), "error") == []


@pytest.mark.parametrize(
    ("layers", "agree"),
    [
        # Every field counts.
        ({"*.qkv_proj": "fp8", "*.q_proj": {"input": {"scheme": "static"}}}, False),
        ({"*.qkv_proj": "fp8", "*.q_proj": {"weight": {"granularity": "tensor"}}}, False),
        # What matters is the scheme and not which rule gave it.
        ({"*.q_proj": "fp8", "*.[kv]_proj": "fp8"}, True),
        ({"*.q_proj": "fp8", "*.[kv]_proj": {"method": "fp8", "weight": {"dtype": "fp8_e4m3"}}}, True),
        ({"*.qkv_proj": "none", "*.q_proj": "none"}, True),
    ],
)
def test_agreement_is_about_schemes(layers: object, agree: bool) -> None:
    assert bool(findings(plan(llama(), layers), "PQ105")) == (not agree)


@pytest.mark.parametrize(
    ("layers", "named"),
    [
        ({"*.self_attn": "fp8", "*.q_proj": "int8"}, ("*.self_attn", "*.q_proj")),
        ({"*.self_attn": "fp8", "*.k_proj": {"input": {"scheme": "static"}}}, ("*.self_attn", "*.k_proj")),
        ({"*.v_proj": "fp8"}, ("no rule", "*.v_proj")),
    ],
)
def test_the_error_names_both_rules_and_the_layers(layers: dict[str, object], named: tuple[str, str]) -> None:
    (error,) = [finding for finding in plan(llama(), layers).findings if finding.code == "PQ105"]
    assert error.level == "error"
    assert all(text in error.message for text in named)
    assert sorted(error.layers) == [f"model.layers.{{0..1}}.self_attn.{part}_proj" for part in "kqv"]
    assert "decide '*.qkv_proj'" in error.message


def test_with_a_default_the_error_names_the_default() -> None:
    (error,) = findings(plan(llama(), {"*.q_proj": "fp8"}, default="int8"), "PQ105")
    assert "the default" in error


def test_consistency_is_judged_over_the_members_that_exist() -> None:
    # Block 1 has no v_proj.
    model = llama(without_v=(1,))
    assert codes(plan(model, {"model.layers.1.self_attn": "none"}, default="fp8"), "error") == []
    assert codes(plan(model, {"model.layers.1.self_attn.q_proj": "none"}, default="fp8"), "error") == ["PQ105"]


def test_alike_disagreements_are_one_finding_however_many_blocks() -> None:
    assert len(findings(plan(llama(blocks=12), {"*.q_proj": "fp8"}), "PQ105")) == 1


# --- groups that the policy adds -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("groups", "layers", "agree"),
    [
        ([["*.o_proj", "*.qkv_proj"]], {"*.o_proj": "fp8"}, False),
        ([["*.o_proj", "*.qkv_proj"]], {"*.self_attn": "fp8"}, True),
        # Members under one parent module are joined: the two blocks may differ,
        ([["*.o_proj", "*.qkv_proj"]], {"model.layers.0.self_attn": "fp8"}, True),
        ([["*.mlp.*"]], {"model.layers.1.mlp": "fp8"}, True),
        # and so may modules side by side.
        ([["*.o_proj", "*.down_proj"]], {"*.o_proj": "fp8"}, True),
        # One list is one group.
        ([["*.o_proj"], ["*.qkv_proj"]], {"*.o_proj": "fp8"}, True),
        # The names of a group may be of any namespace.
        ([["decoder.*.attention.o_proj", "*.self_attn.qkv_proj"]], {"*.o_proj": "fp8"}, False),
    ],
)
def test_groups_of_the_policy(groups: list[list[str]], layers: object, agree: bool) -> None:
    resolved = plan(llama(), layers, groups=groups)
    assert codes(resolved, "error") == ([] if agree else ["PQ105"])


def test_a_group_member_that_reaches_nothing_is_an_error() -> None:
    resolved = plan(llama(), {"*.mlp": "fp8"}, groups=[["*.o_proj", "*.to_q"]])
    (error,) = findings(resolved, "PQ115")
    assert "'*.to_q'" in error
