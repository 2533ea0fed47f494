"""The policy that this project is for: experts in FP8, q/k/v left alone, on five models and from either naming."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Literal

import pytest

from policyquant import Plan, load_policy, resolve
from policyquant.plan.rows import Row
from tests.plan.models import codes, findings, inventory, module_inventory, plan

MODELS = ["Mixtral-8x7B-v0.1", "Qwen3-30B-A3B", "DeepSeek-V3", "Kimi-K2-Instruct", "gpt-oss-120b"]
LATENT = {"DeepSeek-V3", "Kimi-K2-Instruct"}
LAYERS = {"decoder.*.moe": "fp8", "*.qkv_proj": "none"}

Source = Literal["checkpoint", "module", "unsaid"]
Default = Literal["none", "int8"]


@cache
def resolved(model: str, source: Source, default: Default) -> Plan:
    if source == "checkpoint":
        return plan(inventory(model), LAYERS, default=default)
    return plan(module_inventory(model, "module" if source == "module" else None), LAYERS, default=default)


def prediction(name: str, model: str) -> bool:
    """Whether a layer is of DeepSeek's prediction layer."""
    return model == "DeepSeek-V3" and name.startswith("model.layers.61.")


def rows(plan: Plan, model: str) -> Iterator[tuple[str, Row]]:
    """Rows of everything but the prediction layer, with the last part of their name."""
    for row in plan.rows:
        if not prediction(row.names()[0], model):
            yield row.form.template.rpartition(".")[2], row


@pytest.mark.parametrize("default", ["none", "int8"])
@pytest.mark.parametrize("source", ["checkpoint", "module", "unsaid"])
@pytest.mark.parametrize("model", MODELS)
class TestDecisions:
    def test_experts_are_fp8(self, model: str, source: Source, default: Default) -> None:
        experts = [row for _, row in rows(resolved(model, source, default), model) if row.kind == "moe"]
        assert experts
        assert {row.scheme.method for row in experts} == {"fp8"}

    def test_shared_experts_are_fp8(self, model: str, source: Source, default: Default) -> None:
        shared = [
            row for _, row in rows(resolved(model, source, default), model) if ".shared_experts." in row.form.template
        ]
        assert bool(shared) == (model in LATENT)
        assert {row.scheme.method for row in shared if row.kind == "linear"} <= {"fp8"}

    def test_routers_are_protected(self, model: str, source: Source, default: Default) -> None:
        routers = [row for _, row in rows(resolved(model, source, default), model) if row.kind == "router"]
        assert routers
        assert {(row.scheme.method, row.decided_by) for row in routers} == {("none", "protection")}

    def test_qkv_is_left_alone(self, model: str, source: Source, default: Default) -> None:
        found = {
            last: (row.scheme.method, row.decided_by)
            for last, row in rows(resolved(model, source, default), model)
            if row.kind == "linear" and ".self_attn." in row.form.template and last != "o_proj"
        }
        names = (
            ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"]
            if model in LATENT
            else ["q_proj", "k_proj", "v_proj"]
        )
        assert found == dict.fromkeys(names, ("none", "rule"))

    def test_the_output_projection_is_as_the_default_says(self, model: str, source: Source, default: Default) -> None:
        methods = {row.scheme.method for last, row in rows(resolved(model, source, default), model) if last == "o_proj"}
        assert methods == {default}

    def test_head_and_embedding_are_left_alone(self, model: str, source: Source, default: Default) -> None:
        head, embedding = (resolved(model, source, default)[name] for name in ("lm_head", "model.embed_tokens"))
        assert (head.method, embedding.method) == ("none", "none")
        assert head.decided_by == ("default" if default == "none" else "protection")

    def test_dense_blocks_are_as_the_default_says(self, model: str, source: Source, default: Default) -> None:
        dense = [
            row
            for last, row in rows(resolved(model, source, default), model)
            if row.kind == "linear" and row.form.template.endswith(f".mlp.{last}")
        ]
        assert bool(dense) == (model in LATENT)
        assert {row.scheme.method for row in dense} <= {default}

    def test_there_is_nothing_to_complain_of(self, model: str, source: Source, default: Default) -> None:
        assert codes(resolved(model, source, default), "error") == []
        # That a config declares what the module tree does not hold is the source's affair.
        assert set(codes(resolved(model, source, default), "warning")) <= {"PQ436"}


@pytest.mark.parametrize("default", ["none", "int8"])
@pytest.mark.parametrize("source", ["module", "unsaid"])
@pytest.mark.parametrize("model", MODELS)
def test_both_sources_decide_alike_on_every_layer_or_part_that_both_have(
    model: str, source: Source, default: Default
) -> None:
    stored, tree = resolved(model, "checkpoint", default), resolved(model, source, default)
    compared = set()
    for row in stored.rows:
        # No finding says that parts of a layer differ, so of a block's experts one stands for all.
        firsts = {indices[:1]: indices for indices in reversed(row.indices)}
        for name in map(row.form.fill, firsts.values()):
            if name in tree:
                assert tree[name].scheme == row.scheme, name
                compared.add(tree[name].name)
            else:
                assert prediction(name, model), name
    assert compared == {layer.name for layer in tree.layers()}


@pytest.mark.parametrize("default", ["none", "int8"])
def test_the_prediction_layer_is_decided_by_the_default_and_a_note_says_so(default: Default) -> None:
    plan = resolved("DeepSeek-V3", "checkpoint", default)
    linear = [
        row
        for row in plan.rows
        if row.form.fill(row.indices[0]).startswith("model.layers.61.") and row.kind in ("moe", "linear")
    ]
    assert linear
    decided = {(row.scheme.method, row.decided_by) for row in linear}
    # Its q/k/v have fused names as well, and `*.qkv_proj` reaches them.
    assert decided == {(default, "default"), ("none", "rule")}
    (note,) = findings(plan, "PQ304")
    assert "'mtp.*.moe' would reach them" in note


@pytest.mark.parametrize(
    "model",
    [
        "Mixtral-8x7B-v0.1",
        "DeepSeek-V3",
        "Qwen3-30B-A3B",
        "gpt-oss-120b",
        "Meta-Llama-3-8B",
        "Qwen2.5-VL-7B-Instruct",
    ],
)
def test_the_designs_example_policy_runs_without_errors(model: str) -> None:
    result = resolve(load_policy(Path("tests/data/policies/design.yaml")), inventory(model))
    assert codes(result, "error") == []
    # It says what it says: the first four and last four layers are left alone, the rest is not.
    quantized = {
        int(layer.name.split(".")[2])
        for layer in result.layers()
        if layer.name.startswith("model.layers.") and layer.method != "none"
    }
    last = max(int(layer.name.split(".")[2]) for layer in result.layers() if layer.name.startswith("model.layers."))
    last -= model == "DeepSeek-V3"
    assert quantized - {61} == set(range(4, last - 3))


@pytest.mark.parametrize("model", ["Meta-Llama-3-8B", "Qwen2.5-VL-7B-Instruct"])
def test_in_the_example_the_activation_emits_what_the_down_projection_reads(model: str) -> None:
    result = resolve(load_policy(Path("tests/data/policies/design.yaml")), inventory(model))
    act, down = (result[f"model.layers.7.mlp.{name}"] for name in ("act_fn", "down_proj"))
    assert down.method == "fp8_block"
    assert act.output == down.scheme.input
    assert result["model.layers.7.self_attn"].kv_cache is not None
    assert result["model.layers.7.self_attn.q_proj"].method == "none"
    assert result["model.layers.7.self_attn.o_proj"].method == "fp8"
