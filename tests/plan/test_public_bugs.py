"""Public bug reports of people who quantize models, each reduced to what went wrong, with the outcome they wanted.

The names of the tests carry the numbers of the reports as we collected them: rule precedence (A01 to A03), patterns
(A04, A05), defaults (A06), diagnostics (A07), fused layers (A08 to A10, A15), names (A11, A12), scales (A14), shapes
(A16), checkpoint files (A17, A18), tied weights (A19), configurations (A20).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from policyquant import Inventory, SourceError
from tests.plan.models import codes, findings, inventory, llama, module_inventory, phi3, plan, quantized, tied_llama

CHECKPOINTS = Path("tests/data/checkpoints")


def linears(names: Iterable[str], model_type: str = "llama", shape: tuple[int, int] = (256, 256)) -> Inventory:
    return Inventory.from_tensors(
        [(f"{name}.weight", shape, "BF16") for name in names], config={"model_type": model_type}
    )


@pytest.mark.parametrize("second", ["re:.*proj", "re:..*proj"])
def test_a01_the_spelling_of_a_pattern_does_not_decide(second: str) -> None:
    name = "model.layers.3.self_attn.q_proj"
    rules = [("re:.*q_proj", "int8"), (second, "int4_weight_only")]
    for order in (rules, rules[::-1]):
        layer = plan(linears([name]), dict(order))[name]
        assert layer.method == order[-1][1]
        assert layer.rule is not None
        assert layer.rule.pattern == order[-1][0]
        assert [rule.pattern for rule in layer.beaten] == [order[0][0]]


def test_a01_an_unrelated_rule_changes_nothing() -> None:
    name = "model.layers.3.self_attn.q_proj"
    rules = [
        {"match": "re:.*q_proj", "method": "int8"},
        {"match": "re:.*gate", "method": "int4_weight_only", "optional": True},
    ]
    assert plan(linears([name]), rules)[name].method == "int8"


def test_a02_none_is_a_decision_and_never_falls_through_to_the_default(tmp_path: Path) -> None:
    saved = tmp_path / "model.json"
    model = {
        "tensors": {"time_embed.0.weight": ["F32", [8, 8]], "linear1.weight": ["F32", [8, 8]]},
        "v5_module_types": {"time_embed.0": "Linear", "linear1": "Linear"},
    }
    saved.write_text(json.dumps(model))
    resolved = plan(Inventory.open(saved), {"*time_embed*": "none"}, default="int8")
    skipped, other = resolved["time_embed.0"], resolved["linear1"]
    assert (skipped.method, skipped.decided_by) == ("none", "rule")
    assert (other.method, other.decided_by) == ("int8", "default")


def test_a03_a_rule_that_says_what_the_default_says_is_a_decision() -> None:
    name = "model.layers.0.self_attn.o_proj"
    layer = plan(llama(), {name: "int4_weight_only"}, extends="int8-dynamic", default="int4_weight_only")[name]
    assert (layer.method, layer.decided_by) == ("int4_weight_only", "rule")
    assert layer.rule is not None
    assert layer.rule.pattern == name


@pytest.mark.parametrize(
    ("pattern", "blocks"),
    [
        ("model.layers.1", {1}),
        ("model.layers.1.mlp", {1}),
        ("*.1.mlp", {1}),
        # This one says so; the plan shows which blocks it hits.
        ("model.layers.1*", {1, *range(10, 20)}),
    ],
)
def test_a04_a_name_ends_where_a_part_ends(pattern: str, blocks: set[int]) -> None:
    resolved = plan(llama(blocks=40), {pattern: "none"}, default="int8")
    skipped = [row for row in resolved.rows if row.form.template.endswith(".down_proj") and row.scheme.method == "none"]
    assert {indices[0] for row in skipped for indices in row.indices} == blocks
    if len(blocks) > 1:
        assert skipped[0].spans() == ["model.layers.{1,10..19}.mlp.down_proj"]


def _router_beside_gates() -> Inventory:
    mlp = "model.layers.0.mlp"
    return Inventory.from_tensors(
        [
            (f"{mlp}.gate.weight", (4, 256), "BF16"),
            (f"{mlp}.gate.e_score_correction_bias", (4,), "F32"),
            (f"{mlp}.gate_proj.weight", (256, 256), "BF16"),
            (f"{mlp}.up_proj.weight", (256, 256), "BF16"),
            (f"{mlp}.experts.gate_up_proj", (4, 512, 256), "BF16"),
            (f"{mlp}.shared_expert_gate.weight", (1, 256), "BF16"),
            ("lm_head.weight", (1024, 256), "BF16"),
        ],
        config={"model_type": "minimax"},
    )


def test_a05_gate_does_not_swallow_gate_proj() -> None:
    resolved = plan(_router_beside_gates(), {"*.gate": "none", "*.lm_head": "none"}, default="fp8")
    reached = {layer.name for layer in resolved.layers() if layer.decided_by == "rule"}
    assert reached == {"model.layers.0.mlp.gate", "lm_head"}


def test_a05_an_entry_for_a_parameter_says_so() -> None:
    resolved = plan(_router_beside_gates(), {"*.e_score_correction_bias": "none"}, default="fp8")
    assert codes(resolved, "error") == ["PQ102"]


def test_a06_a_users_rule_does_not_take_protection_away() -> None:
    rules = [{"match": "audio_tower.*", "method": "none", "optional": True}]
    for model in (llama(), tied_llama()):
        resolved = plan(model, rules, default="int4_weight_only")
        assert (resolved["lm_head"].method, resolved["lm_head"].decided_by) == ("none", "protection")
        assert resolved.explain("lm_head").protected


def test_a07_an_ignore_entry_that_matches_nothing_is_an_error_with_the_nearest_names() -> None:
    attention = "model.layers.0.self_attn"
    model = linears([f"{attention}.{name}" for name in ("o_proj", "indexer.weights_proj")], "glm_moe_dsa")
    resolved = plan(model, {f"{attention}.indexers_proj": "none"}, default="fp8")
    (error,) = findings(resolved, "PQ101")
    assert f"{attention}.indexer" in error


def test_a07_a_rule_that_others_shadow_completely_is_reported() -> None:
    assert codes(plan(llama(), {"*.down_proj": "none", "*": "fp8"}), "warning") == ["PQ201"]


@pytest.mark.parametrize(
    ("pattern", "errors"),
    [
        ("model.layers.5.self_attn", []),
        ("model.layers.5.self_attn.[qk]_proj", []),
        ("model.layers.5.self_attn.qkv_proj", []),
        ("model.layers.5.self_attn.q_proj", ["PQ105"]),
        ("model.layers.4.self_attn.[qk]_proj", ["PQ105"]),
    ],
)
def test_a08_a_group_is_judged_over_the_members_that_exist(pattern: str, errors: list[str]) -> None:
    # Block 5 takes its values from its keys: it has no v_proj.
    resolved = plan(llama(blocks=6, without_v=(5,)), {pattern: "none"}, default="int4_weight_only")
    assert codes(resolved, "error") == errors
    for message in findings(resolved, "PQ105"):
        assert repr(pattern) in message
        assert "the default" in message


def test_a09_a_layer_listed_nowhere_inherits_nothing_from_its_siblings() -> None:
    mixer = "model.layers.0.linear_attn"
    model = Inventory.from_tensors(
        [
            *(
                (f"{mixer}.{name}.weight", (256, 256), "BF16")
                for name in ("in_proj_qkv", "in_proj_z", "in_proj_a", "in_proj_b", "out_proj")
            ),
            (f"{mixer}.conv1d.weight", (256, 1, 4), "BF16"),
            (f"{mixer}.norm.weight", (256,), "BF16"),
        ],
        config={"model_type": "qwen3_next"},
    )
    resolved = plan(model, {f"{mixer}.{{in_proj_qkv,in_proj_z,out_proj}}": "fp8"})
    assert quantized(resolved) == {f"{mixer}.{name}" for name in ("in_proj_qkv", "in_proj_z", "out_proj")}
    for name in ("in_proj_a", "in_proj_b", "conv1d", "norm"):
        assert resolved[f"{mixer}.{name}"].decided_by == "nothing"
    assert codes(resolved, "error") == []


def test_a10_excluding_all_members_excludes_the_fused_layer() -> None:
    excluded = {f"*.self_attn.{name}_proj": "none" for name in "qkv"}
    resolved = plan(phi3(), excluded, default="fp8")
    assert resolved["model.layers.0.self_attn.qkv_proj"].method == "none"
    assert codes(resolved, "error") == []


def test_a10_excluding_some_is_an_error() -> None:
    resolved = plan(phi3(), {"*.self_attn.q_proj": "none"}, default="fp8")
    assert codes(resolved, "error") == ["PQ106"]


@pytest.mark.parametrize("pattern", ["model.visual.*", "visual.*"])
def test_a10_a_prefix_that_the_names_lack_is_normalised_or_reported(pattern: str) -> None:
    vision = plan(inventory("Qwen2.5-VL-7B-Instruct"), {pattern: "none"}, default="int8")
    assert vision["visual.blocks.0.attn.qkv"].method == "none"
    assert "PQ101" in codes(plan(llama(), {pattern: "none"}, default="int8"), "error")


@pytest.mark.parametrize("pattern", ["visual.*", "model.visual.*", "visual", "model.visual"])
def test_a11_both_spellings_mean_the_same_tower_from_both_sources(pattern: str) -> None:
    stored, tree = (
        plan(model, {pattern: "none"}, default="int8_weight_only")
        for model in (inventory("Qwen2.5-VL-7B-Instruct"), module_inventory("Qwen2.5-VL-7B-Instruct"))
    )
    skipped = {layer.name for layer in stored.layers() if layer.decided_by == "rule"}
    assert {name.split(".")[2] for name in skipped if name.startswith("visual.blocks.")} == {str(i) for i in range(32)}
    assert all(name.startswith("visual.") for name in skipped)
    for layer in stored.layers():
        assert tree[layer.name].method == layer.method


@pytest.mark.parametrize("bits", [4, 6])
def test_a12_bits_are_told_by_shapes_whatever_name_the_override_goes_by(bits: int) -> None:
    name = "model.language_model.layers.0.linear_attn.in_proj_qkv"
    model = Inventory.from_tensors(
        [
            (f"{name}.weight", (10240, 5120 * bits // 32), "U32"),
            (f"{name}.scales", (10240, 40), "BF16"),
            (f"{name}.biases", (10240, 40), "BF16"),
        ],
        config={"quantization": {"bits": 4, "group_size": 128, name: {"bits": 6, "group_size": 128}}},
    )
    layer = plan(model, {"*": "none"})[name]
    assert layer.shape == (10240, 5120)
    assert f"{bits} bit" in (layer.stored or "")


def test_a14_experts_without_an_input_scale_are_listed() -> None:
    def tensors() -> Iterable[tuple[str, tuple[int, ...], str]]:
        for expert in range(4):
            for name in ("gate", "up", "down"):
                projection = f"model.layers.0.mlp.experts.{expert}.{name}_proj"
                yield f"{projection}.weight", (64, 32), "U8"
                yield f"{projection}.weight_scale", (64, 4), "F8_E4M3"
                yield f"{projection}.weight_scale_2", (), "F32"
                if expert != 3:
                    yield f"{projection}.input_scale", (), "F32"

    model = Inventory.from_tensors(
        tensors(),
        config={"model_type": "qwen3_moe", "quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}},
    )
    errors = [finding for finding in plan(model, default="none").findings if finding.code == "PQ408"]
    assert {name for error in errors for name in error.layers} == {
        f"model.layers.0.mlp.experts.3.{name}_proj" for name in ("gate", "up", "down")
    }
    assert {error.level for error in errors} == {"error"}


@pytest.mark.parametrize(
    ("layers", "groups", "errors"),
    [
        ({"*.attn1.to_q": "nvfp4"}, [], ["PQ105"]),
        ({"*.attn1.to_[qkv]": "nvfp4"}, [], []),
        # Cross-attention is not fused,
        ({"*.attn2.to_q": "nvfp4"}, [], []),
        # unless the policy says so.
        ({"*.attn2.to_q": "nvfp4"}, [["*.attn2.to_[qkv]"]], ["PQ105"]),
    ],
)
def test_a15_groups_are_told_by_what_projections_do_and_can_be_added_to(
    layers: dict[str, str], groups: list[list[str]], errors: list[str]
) -> None:
    names = [f"blocks.{i}.{a}.to_{x}" for i in range(2) for a in ("attn1", "attn2") for x in "qkv"]
    assert codes(plan(linears(names, "wan"), layers, groups=groups), "error") == errors


def test_a16_a_shape_that_leaves_a_ragged_group_is_rejected_before_any_data_is_read() -> None:
    model = inventory("Qwen2.5-VL-7B-Instruct")
    (error,) = [f for f in plan(model, {"*": "int4_weight_only"}).findings if f.code == "PQ107"]
    assert error.layers == ("visual.blocks.{0..31}.mlp.down_proj",)
    assert all(text in error.message for text in ("1280x3420", "multiple of 128"))
    fallback = {"*": "int4_weight_only", "visual.*.down_proj": "int8_weight_only"}
    assert codes(plan(model, fallback), "error") == []


def test_a17_a_missing_shard_is_named() -> None:
    with pytest.raises(SourceError, match=r"model-00002-of-00002\.safetensors"):
        Inventory.open(CHECKPOINTS / "sharded_missing_shard")


def test_a18_an_index_that_contradicts_its_shards_is_reported() -> None:
    found = Inventory.open(CHECKPOINTS / "sharded_tensor_in_other_shard").findings
    (report,) = [finding for finding in found if "k_proj" in finding.message]
    assert report.level in ("error", "warning")
    assert "model-00002-of-00002.safetensors" in report.message
    assert "model-00001-of-00002.safetensors" in report.message


@pytest.mark.parametrize(
    ("layers", "errors"),
    [
        ({"*.embed_tokens": "int8_weight_only", "lm_head": "none"}, ["PQ108"]),
        ({"*.embed_tokens": "none", "lm_head": "int8_weight_only"}, ["PQ108"]),
        ({"*.embed_tokens": "int8_weight_only", "lm_head": "int8_weight_only"}, []),
    ],
)
def test_a19_one_storage_has_one_decision(layers: dict[str, str], errors: list[str]) -> None:
    model = inventory("SmolLM2-135M")
    resolved = plan(model, layers)
    assert codes(resolved, "error") == errors
    apart = plan(model, layers, untie=True)
    assert codes(apart, "error") == []
    # What untying costs is in the sizes.
    assert (apart.total.bytes_after or 0) > (resolved.total.bytes_after or 0)


@pytest.mark.parametrize(
    "quantization",
    [
        {"quant_algo": "FP8", "kv_cache_scheme": "FP8", "ignore": ["lm_head"], "config_groups": {"group_0": {}}},
        {"quant_algo": "FP8", "kv_cache_scheme": {"num_bits": 8, "type": "float"}},
        {"quant_algo": None, "config_groups": "none", "ignore": "lm_head"},
        "fp8",
        ["fp8"],
        None,
    ],
)
def test_a20_odd_quantization_configs_are_no_reason_to_crash(quantization: Any) -> None:
    model = Inventory.from_tensors(
        [("model.layers.0.mlp.down_proj.weight", (256, 256), "BF16")],
        config={"model_type": "qwen3", "quantization_config": quantization},
    )
    assert plan(model, {"*": "fp8"})["model.layers.0.mlp.down_proj"].method == "fp8"
