"""Assertions of a policy about its own outcome."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from policyquant import Inventory, load_policy, resolve
from tests.plan.models import codes, findings, llama, llama_without_shapes, mixtral, mixtral_modules, plan, tied_llama

FP8_MLP = {"*.mlp": "fp8"}


@pytest.mark.parametrize(
    ("layers", "expected", "holds"),
    [
        # Every layer that the pattern reaches and the method can take must have the given fields:
        (FP8_MLP, {"*.mlp": "fp8"}, True),
        (FP8_MLP, {"*.mlp": "int8"}, False),
        (FP8_MLP, {"model.layers.0": "fp8"}, False),
        (FP8_MLP, {"*.down_proj": "fp8"}, True),
        # one that is different is enough,
        ({**FP8_MLP, "model.layers.1.mlp.down_proj": "none"}, {"*.mlp": "fp8"}, False),
        # layers that the method cannot take do not count (activations here),
        (FP8_MLP, {"model.layers.{0..1}.mlp": "fp8"}, True),
        # and `none` applies to all kinds.
        (FP8_MLP, {"*.self_attn": "none"}, True),
        (FP8_MLP, {"*.act_fn": "none"}, True),
        (FP8_MLP, {"*": "none"}, False),
        (FP8_MLP, {"head": "none"}, True),
        ({**FP8_MLP, "lm_head": "fp8"}, {"head": "none"}, False),
        # Fields:
        (FP8_MLP, {"*.mlp": {"method": "fp8", "input": {"scheme": "dynamic"}}}, True),
        (FP8_MLP, {"*.mlp": {"method": "fp8", "input": {"scheme": "static"}}}, False),
        (FP8_MLP, {"*.mlp": {"weight": {"dtype": "fp8"}}}, True),
        (FP8_MLP, {"*.mlp": {"weight": {"dtype": "int8"}}}, False),
        (FP8_MLP, {"*.self_attn": {"weight": {"dtype": "fp8"}}}, False),
        (FP8_MLP, {"*.mlp": {"input": {"granularity": "token"}}}, True),
        # output and kv_cache, each of the layers that have one.
        ({"*.self_attn": {"kv_cache": "fp8"}}, {"*": {"kv_cache": "fp8"}}, True),
        ({"*.self_attn": {"kv_cache": "fp8"}}, {"*": {"kv_cache": "fp8_e5m2"}}, False),
        ({"model.layers.0": {"kv_cache": "fp8"}}, {"*": {"kv_cache": "fp8"}}, False),
        (FP8_MLP, {"*": {"kv_cache": "none"}}, True),
        ({"*.act_fn": {"output": "fp16"}}, {"*.act_fn": {"output": "fp16"}}, True),
        ({"*.act_fn": {"output": "fp16"}}, {"*.act_fn": {"output": "none"}}, False),
        ({**FP8_MLP, "*.act_fn": {"output": "fp8"}}, {"*.act_fn": {"output": "fp8"}}, True),
        (FP8_MLP, {"*.act_fn": {"output": "fp8"}}, False),
    ],
)
def test_layers(layers: dict[str, Any], expected: dict[str, Any], holds: bool) -> None:
    resolved = plan(llama(), layers, expect={"layers": expected})
    assert codes(resolved, "error") == ([] if holds else ["PQ111"] * len(findings(resolved, "PQ111")))
    assert bool(findings(resolved, "PQ111")) == (not holds)


@pytest.mark.parametrize(
    ("pattern", "method", "holds"),
    [
        # Weight methods take a router only if it is named, so a module above it says nothing of it.
        ("decoder.*.moe", "fp8", True),
        ("*.block_sparse_moe.*", "fp8", True),
        ("*.gate", "fp8", False),
        ("decoder.*.moe.router", "fp8", False),
        ("decoder.*.moe.router", "none", True),
        ("decoder.*.moe", "none", False),
    ],
)
def test_an_expectation_for_a_module_with_a_router(pattern: str, method: str, holds: bool) -> None:
    resolved = plan(mixtral(), {"decoder.*.moe": "fp8"}, expect={"layers": {pattern: method}})
    assert bool(findings(resolved, "PQ111")) == (not holds)


@pytest.mark.parametrize(
    ("expected", "error"),
    [
        ({"*.absent": "none"}, True),
        ({"*.absent": {"method": "none", "optional": True}}, False),
        # Also if the name is canonical: an assertion that asserts nothing must say so.
        ({"decoder.*.moe.router": "none"}, True),
        ({"decoder.*.moe.router": {"method": "none", "optional": True}}, False),
        ({"lm_head": {"method": "none", "optional": True}}, False),
    ],
)
def test_reaching_nothing_fails_unless_optional(expected: dict[str, Any], error: bool) -> None:
    resolved = plan(llama(), FP8_MLP, expect={"layers": expected})
    assert codes(resolved, "error") == (["PQ112"] if error else [])


@pytest.mark.parametrize(
    ("expected", "error"),
    [
        # Nor does an assertion assert anything that no layer it reaches could break.
        ({"*layernorm": "fp8"}, True),
        ({"*.embed_tokens": "fp8"}, True),
        ({"*.mlp": {"kv_cache": "fp8"}}, True),
        ({"*layernorm": {"method": "fp8", "optional": True}}, False),
        ({"*.mlp": "fp8"}, False),
        ({"*layernorm": "none"}, False),
    ],
)
def test_reaching_nothing_that_could_be_so_fails_too(expected: dict[str, Any], error: bool) -> None:
    resolved = plan(llama(), FP8_MLP, expect={"layers": expected})
    assert codes(resolved, "error") == (["PQ112"] if error else [])


@pytest.mark.parametrize(
    ("pattern", "holds"), [("model", True), ("*", True), ("*.embed_tokens", False), ("embedding", False)]
)
def test_fields_of_a_weight_are_expected_of_an_embedding_only_if_it_is_named(pattern: str, holds: bool) -> None:
    resolved = plan(llama(), {"*": "fp8", "lm_head": "fp8"}, expect={"layers": {pattern: {"weight": {"dtype": "fp8"}}}})
    assert codes(resolved, "error") == ([] if holds else ["PQ111"])


def test_optional_excuses_nothing_else() -> None:
    resolved = plan(llama(), FP8_MLP, expect={"layers": {"*.mlp": {"method": "none", "optional": True}}})
    assert "PQ111" in codes(resolved, "error")


def test_the_error_says_what_was_expected_what_it_is_and_who_decided() -> None:
    resolved = plan(llama(), {"*": "fp8", "*.down_proj": "int8"}, expect={"layers": {"*.mlp": "fp8"}})
    (error,) = [finding for finding in resolved.findings if finding.code == "PQ111"]
    for text in ("expected fp8", "'*.mlp'", "int8", "'*.down_proj'"):
        assert text in error.message
    assert error.layers == ("model.layers.{0..1}.mlp.down_proj",)


def test_the_error_shows_what_differs_as_a_policy_spells_it() -> None:
    expect = {"layers": {"*.mlp": {"weight": {"block": [128, 128]}}, "*.self_attn": {"kv_cache": "none"}}}
    resolved = plan(llama(), {"*.mlp": "fp8", "*.self_attn": {"kv_cache": "fp8"}}, expect=expect)
    weight, cache = findings(resolved, "PQ111")
    assert "expected weight: {block: [128, 128], granularity: block} for '*.mlp', but it is fp8 (weight" in weight
    assert "expected kv_cache: none for '*.self_attn', but it is none with KV cache float8_e4m3fn per tensor" in cache


def test_of_a_layer_that_protection_kept_it_says_so() -> None:
    resolved = plan(llama(), {"*": "fp8"}, expect={"layers": {"lm_head": "fp8"}})
    (error,) = findings(resolved, "PQ111")
    assert "none since it is protected" in error


def test_a_misspelled_pattern_gets_the_nearest_name() -> None:
    (error,) = findings(plan(llama(), FP8_MLP, expect={"layers": {"*.down_prj": "fp8"}}), "PQ112")
    assert "did you mean '*.down_proj'?" in error


def test_parts_count_one_by_one() -> None:
    layers = {"*.experts": "fp8", "*.experts.{2}": "int8"}
    resolved = plan(mixtral_modules(), layers, expect={"layers": {"*.experts.{0..1}": "fp8"}})
    assert findings(resolved, "PQ111") == []
    resolved = plan(mixtral_modules(), layers, expect={"layers": {"*.experts.{0..2}": "fp8"}})
    assert len(findings(resolved, "PQ111")) == 1


# --- bits per weight -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "holds"),
    [
        ("<= 16", True),
        (">= 16", True),
        ("== 16", True),
        ("< 16", False),
        ("> 16", False),
        ("<= 15.9", False),
        (">= 16.1", False),
        (["<= 16", ">= 8"], True),
        (["<= 16", ">= 17"], False),
    ],
)
def test_bits_of_an_unquantized_model(expected: object, holds: bool) -> None:
    resolved = plan(llama(), {"*": "none"}, expect={"bits_per_weight": expected})
    assert codes(resolved, "error") == ([] if holds else ["PQ113"])


def test_bits_count_all_stored_bytes_scales_included_over_all_parameters() -> None:
    # A power-of-two scale of one byte for each 32 values of 4 bits is 4.25 bits in quantized layers.
    resolved = plan(llama(), {"model.layers": "mxfp4"})
    quantized = sum(256 * 256 * 4 + 3 * 256 * 512 for _ in range(2))
    other = 2 * 1024 * 256 + 5 * 256
    bits = (4.25 * quantized + 16 * other) / (quantized + other)
    assert resolved.total.bits_after == pytest.approx(bits, rel=1e-12)
    for comparison, holds in (("<=", True), (">", False)):
        expect = {"bits_per_weight": f"{comparison} {bits + 1e-6:.9f}"}
        assert bool(findings(plan(llama(), {"model.layers": "mxfp4"}, expect=expect), "PQ113")) == (not holds)


@pytest.mark.parametrize("layers", [{"*": "none"}, {"*.mlp": "fp8"}])
def test_unknown_shapes_make_it_fail_as_unknown(layers: dict[str, str]) -> None:
    resolved = plan(llama_without_shapes(), layers, expect={"bits_per_weight": "<= 100"})
    assert codes(resolved, "error") == ["PQ114"]


@pytest.mark.parametrize("model", [tied_llama()])
def test_a_shared_weight_counts_once(model: Inventory) -> None:
    assert codes(plan(model, {"*": "none"}, expect={"bits_per_weight": "== 16"}), "error") == []


# --- extended files --------------------------------------------------------------------------------------------------


def test_expectations_of_extended_files_add_up(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("expect: {layers: {'*.o_proj': none}, bits_per_weight: '<= 15'}\n")
    (tmp_path / "own.yaml").write_text(
        "extends: base.yaml\nlayers: {'*.mlp': fp8}\nexpect: {layers: {'*.mlp': int8}, bits_per_weight: '<= 8'}\n"
    )
    resolved = resolve(load_policy(tmp_path / "own.yaml"), llama())
    assert len(resolved.errors()) == 2
    assert all("own.yaml" in error.message for error in resolved.errors())
    (tmp_path / "base.yaml").write_text("expect: {layers: {'*.o_proj': fp8}, bits_per_weight: '<= 3'}\n")
    assert len(resolve(load_policy(tmp_path / "own.yaml"), llama()).errors()) == 4
