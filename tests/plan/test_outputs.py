"""Quantized outputs: a layer may emit FP8 only if every layer that reads it takes exactly that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from policyquant import Quantization
from tests.plan.models import codes, deepseek, findings, llama, mixtral, mixtral_modules, plan, qwen2_5_vl

ACT = "model.layers.0.mlp.act_fn"
NORM = "model.layers.0.input_layernorm"
POST_NORM = "model.layers.0.post_attention_layernorm"
PER_TOKEN = Quantization("float8_e4m3fn", "token", scheme="dynamic")
GROUP_128 = Quantization("float8_e4m3fn", "group", group=128, scheme="dynamic")
STATIC = Quantization("float8_e4m3fn", "tensor", scheme="static")


@pytest.mark.parametrize(
    ("layers", "name", "output"),
    [
        # A short output takes the granularity of its consumers: the down projection reads the activation,
        ({"*.down_proj": "fp8", "*.act_fn": {"output": "fp8"}}, ACT, PER_TOKEN),
        ({"*.down_proj": "fp8_block", "*.act_fn": {"output": "fp8"}}, ACT, GROUP_128),
        (
            {"*.down_proj": {"method": "fp8", "input": {"scheme": "static"}}, "*.act_fn": {"output": "fp8"}},
            ACT,
            STATIC,
        ),
        # q, k and v the norm before them,
        ({"*.qkv_proj": "fp8", "*.input_layernorm": {"output": "fp8"}}, NORM, PER_TOKEN),
        # gate and up the other norm,
        ({"*.gate_up_proj": "fp8_block", "*.post_attention_layernorm": {"output": "fp8"}}, POST_NORM, GROUP_128),
        # the output projection what attention gives.
        (
            [{"match": "*.o_proj", "method": "fp8"}, {"kind": "attention", "output": "fp8"}],
            "model.layers.0.self_attn",
            PER_TOKEN,
        ),
        # It does not matter in which order the rules stand.
        ({"*.act_fn": {"output": "fp8"}, "*.down_proj": "fp8_block"}, ACT, GROUP_128),
        # An output written in full says the same,
        (
            {"*.down_proj": "fp8_block", "*.act_fn": {"output": {"dtype": "fp8", "group": 128, "scheme": "dynamic"}}},
            ACT,
            GROUP_128,
        ),
        # and in part: the consumers give the rest.
        ({"*.down_proj": "fp8_block", "*.act_fn": {"output": {"dtype": "fp8", "group": 128}}}, ACT, GROUP_128),
        # Plain dtypes need no reader.
        ({"*.act_fn": {"output": "fp16"}}, ACT, "float16"),
        ({"*.o_proj": {"output": "fp32"}}, "model.layers.0.self_attn.o_proj", "float32"),
    ],
)
def test_an_output_that_can_be_read(layers: object, name: str, output: object) -> None:
    resolved = plan(llama(), layers)
    assert resolved[name].output == output
    assert codes(resolved, "error") == []


@pytest.mark.parametrize(
    ("layers", "why"),
    [
        # Nothing reads it as it is: it goes to the residual stream or to an activation.
        ({"*.down_proj": {"method": "fp8", "output": "fp8"}}, "no layer reads it"),
        ({"*.up_proj": {"output": "fp8"}}, "no layer reads it"),
        # Its consumer takes no quantized input: it is not quantized,
        ({"*.act_fn": {"output": "fp8"}}, "takes no quantized input"),
        ({"*.down_proj": "fp8_weight_only", "*.act_fn": {"output": "fp8"}}, "takes no quantized input"),
        # or not this way,
        ({"*.down_proj": "int8", "*.act_fn": {"output": "fp8"}}, "int8"),
        ({"*.down_proj": "fp8", "*.act_fn": {"output": "fp8_e5m2"}}, "float8_e4m3fn"),
        ({"*.down_proj": "fp8", "*.act_fn": {"output": {"dtype": "fp8", "group": 128}}}, "the output's group is 128"),
        ({"*.down_proj": "fp8_block", "*.act_fn": {"output": {"dtype": "fp8", "group": 64}}}, "group"),
        # or they differ.
        (
            {
                "*.qkv_proj": "fp8",
                "*.v_proj": {"input": {"scheme": "static"}},
                "*.input_layernorm": {"output": "fp8"},
            },
            "differ",
        ),
        # One of several is enough.
        ({"*.q_proj": "fp8", "*.k_proj": "fp8", "*.input_layernorm": {"output": "fp8"}}, "takes no quantized input"),
        # The router reads the norm's output as well, and is not quantized.
        ({"*.experts": "fp8", "*.post_attention_layernorm": {"output": "fp8"}}, "gate"),
    ],
)
def test_an_output_that_cannot_be_read_is_an_error(layers: Mapping[str, Any], why: str) -> None:
    resolved = plan(mixtral() if "*.experts" in layers else llama(), layers)
    (error,) = [finding for finding in resolved.findings if finding.code == "PQ110"]
    assert error.level == "error"
    assert why in error.message
    # It names the rule that sets the output, and is never dropped in silence.
    producer = next(pattern for pattern, scheme in layers.items() if isinstance(scheme, dict) and "output" in scheme)
    assert repr(producer) in error.message


@pytest.mark.parametrize(
    ("layers", "readers"),
    [
        ({"*.act_fn": {"output": "fp8"}, "*.down_proj": "int8"}, ["*.down_proj"]),
        ({"*.act_fn": {"output": "fp8"}, "*.down_proj": "none", "*.mlp.down_proj": "none"}, ["*.mlp.down_proj"]),
        (
            {"*.input_layernorm": {"output": "fp8"}, "*.[qk]_proj": "fp8", "*.v_proj": "fp8_block"},
            ["*.[qk]_proj", "*.v_proj"],
        ),
    ],
)
def test_the_error_names_both_rules(layers: Mapping[str, Any], readers: list[str]) -> None:
    (error,) = findings(plan(llama(), layers), "PQ110")
    assert all(repr(pattern) in error for pattern in (next(iter(layers)), *readers))


def test_blocks_are_judged_one_by_one() -> None:
    resolved = plan(llama(blocks=3), {"*.down_proj": "fp8", "model.layers.1": "none", "*.act_fn": {"output": "fp8"}})
    (error,) = [finding for finding in resolved.findings if finding.code == "PQ110"]
    assert error.layers == ("model.layers.1.mlp.act_fn",)
    assert resolved[ACT].output == PER_TOKEN


def test_blocks_with_different_readers_get_different_outputs() -> None:
    resolved = plan(llama(), {"*.down_proj": "fp8", "model.layers.1.mlp": "fp8_block", "*.act_fn": {"output": "fp8"}})
    assert resolved[ACT].output == PER_TOKEN
    assert resolved["model.layers.1.mlp.act_fn"].output == GROUP_128
    assert codes(resolved, "error") == []


def test_blocks_that_end_alike_stay_one_row() -> None:
    resolved = plan(llama(blocks=9), {"*.down_proj": "fp8", "*.act_fn": {"output": "fp8"}})
    assert [row.count for row in resolved.rows if row.kind == "activation"] == [9]


@pytest.mark.parametrize("model", [mixtral(), mixtral_modules(), deepseek()], ids=lambda model: model.name)
def test_the_activation_of_all_experts_feeds_their_down_projections(model: Any) -> None:
    resolved = plan(model, {"*.moe.experts": "fp8_block", "*.moe.experts.act": {"output": "fp8"}})
    acts = [layer for layer in resolved.layers() if layer.kind == "activation" and layer.output is not None]
    assert {layer.output for layer in acts} == {GROUP_128}
    assert codes(resolved, "error") == []


def test_the_attention_of_a_latent_layer_feeds_its_output_projection() -> None:
    resolved = plan(deepseek(), [{"match": "*.o_proj", "method": "fp8"}, {"kind": "attention", "output": "fp8"}])
    assert codes(resolved, "error") == []


def test_an_activation_kept_by_none_emits_the_models_dtype() -> None:
    resolved = plan(llama(), {"*.down_proj": "fp8", "*.act_fn": {"output": "fp8"}, "model.layers.0.mlp.act_fn": "none"})
    assert resolved[ACT].output is None
    assert resolved["model.layers.1.mlp.act_fn"].output == PER_TOKEN


def test_a_module_covers_the_layers_inside_it_for_outputs_as_well() -> None:
    # Not only attention gets this output, but q, k, v and o as well, which go to nothing that could read it.
    resolved = plan(llama(), {"*.o_proj": "fp8", "*.self_attn": {"output": "fp8"}})
    unread = {name for finding in resolved.findings if finding.code == "PQ110" for name in finding.layers}
    assert unread == {f"model.layers.{{0..1}}.self_attn.{name}_proj" for name in "qkvo"}


def test_an_output_applies_to_layers_that_emit() -> None:
    resolved = plan(qwen2_5_vl(), {"visual.patch_embed.proj": {"output": "bf16"}, "*.o_proj": "fp8"})
    assert codes(resolved, "error") == ["PQ104"]
