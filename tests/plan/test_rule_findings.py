"""What is said about a policy on a model: each finding appears where its fault is, and goes when it is mended."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from policyquant import Inventory, load_policy, resolve
from tests.plan.finding_examples import EXAMPLES, Example
from tests.plan.models import codes, deepseek, findings, inventory, llama, mixtral, plan

_NAME = "{0.code} {0.why}".format


@pytest.mark.parametrize("example", EXAMPLES, ids=_NAME)
def test_a_fault_is_found_at_its_level(example: Example) -> None:
    found = [f for f in resolve(load_policy(example.policy), example.model()).findings if f.code == example.code]
    assert found
    assert {finding.level for finding in found} == {example.level}
    assert all(finding.message for finding in found)


@pytest.mark.parametrize("example", EXAMPLES, ids=_NAME)
def test_it_is_the_only_error_or_warning(example: Example) -> None:
    resolved = resolve(load_policy(example.policy), example.model())
    # A policy whose one rule does nothing quantizes nothing either.
    assert set(codes(resolved, "error", "warning")) - {"PQ204"} <= {example.code}


@pytest.mark.parametrize("example", EXAMPLES, ids=_NAME)
def test_it_is_gone_when_the_fault_is_mended(example: Example) -> None:
    model = (example.mended_model or example.model)()
    assert example.code not in codes(resolve(load_policy(example.mended), model))


def test_every_finding_of_resolution_has_an_example() -> None:
    emitted = {
        code
        for path in Path("policyquant/plan").glob("*.py")
        for code in re.findall(r'"(PQ[123]\d\d)"', path.read_text())
    }
    assert emitted == {example.code for example in EXAMPLES}


# --- rules that reach nothing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "level"),
    [
        # An error for a rule of one's own,
        ({"match": "*.gate", "method": "none"}, "error"),
        ({"match": "model.layers.7", "method": "none"}, "error"),
        ({"match": r"re:.*\.gate", "method": "none"}, "error"),
        ({"match": "transformer.h.0", "method": "none"}, "error"),
        # a note if it is optional,
        ({"match": "*.gate", "method": "none", "optional": True}, "note"),
        ({"kind": "conv", "method": "none", "optional": True}, "note"),
        # or canonical: begins with the literal first part of a canonical name and would reach a name of some family,
        ({"match": "decoder.*.moe.router", "method": "none"}, "note"),
        ({"match": "decoder.*.moe", "method": "fp8"}, "note"),
        ({"match": "vision", "method": "none"}, "note"),
        ({"match": "projector", "method": "none"}, "note"),
        ({"match": "mtp.{0}.moe", "method": "none"}, "note"),
        ({"match": "encoder.{-4..-1}.mlp", "method": "none"}, "note"),
        ({"match": "decoder.{90..95}", "method": "none"}, "note"),
        ({"match": "decoder.*.cross_attention.qkv_proj", "method": "none"}, "note"),
        # not one that begins with a wildcard,
        ({"match": "*.moe.router", "method": "none"}, "error"),
        ({"match": "{decoder,encoder}.*.moe", "method": "none"}, "error"),
        # or that no family has.
        ({"match": "decoder.*.mow", "method": "none"}, "error"),
        ({"match": "vison", "method": "none"}, "error"),
        ({"match": "decoder.layers.*.moe", "method": "none"}, "error"),
    ],
)
def test_how_bad_it_is_to_reach_nothing(rule: dict[str, Any], level: str) -> None:
    resolved = plan(llama(), [rule, {"match": "*.mlp", "method": "fp8"}])
    (finding,) = [finding for finding in resolved.findings if finding.code in ("PQ101", "PQ301")]
    assert finding.level == level
    assert finding.code == ("PQ101" if level == "error" else "PQ301")


def test_a_rule_of_an_extended_file_is_ones_own(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("layers: {'*.gate': none}\n")
    (tmp_path / "own.yaml").write_text("extends: base.yaml\nlayers: {'*.mlp': fp8}\n")
    assert codes(resolve(load_policy(tmp_path / "own.yaml"), llama())) == ["PQ101"]


@pytest.mark.parametrize(
    ("pattern", "hint"),
    [
        ("*.down_prj", "did you mean '*.down_proj'?"),
        ("model.layer.0.mlp", "did you mean 'model.layers.0.mlp'?"),
        ("model.layers.{0..1}.self_atn.q_proj", "did you mean 'model.layers.{0..1}.self_attn.q_proj'?"),
        ("lm_haed", "did you mean 'lm_head'?"),
        ("*.LM_HEAD", "did you mean '*.lm_head'?"),
        ("layers.1.mlp.down_proj", "did you mean '*.layers.1.mlp.down_proj'?"),
        ("q_proj", "did you mean '*.q_proj'?"),
        ("re:q_proj", "did you mean 're:.*q_proj'?"),
        ("*.q_proj,*.k_proj", "{a,b}"),
        ("*.layers.{0-1}.mlp", "{0..1}"),
        ("model.layers.0:1", "{0..1}"),
        ("model.layers.{2..7}", "the indices in model.layers are 0 to 1"),
        ("model.layers.9.mlp", "the indices in model.layers are 0 to 1"),
        (r"re:model\.layers\.1\.mlp\.down_prj", "model.layers.1.mlp.down_proj"),
        ("completely.different", ""),
    ],
)
def test_the_nearest_names_are_offered(pattern: str, hint: str) -> None:
    (error,) = findings(plan(llama(), {pattern: "fp8"}), "PQ101")
    assert hint in error
    if not hint:
        assert "did you mean" not in error


def test_a_hint_reaches_something() -> None:
    (error,) = findings(plan(mixtral(), {"model.layers.*.block_sparse_mo.expert.*.w1": "fp8"}), "PQ101")
    hint = re.search(r"did you mean '(.*)'\?", error)
    assert hint is not None
    assert codes(plan(mixtral(), {hint[1]: "none"}), "error") == []


@pytest.mark.parametrize(
    "pattern", ["model.layers.{}.absent", r"re:model\.layers\.{}\.absent.*", "*.{}.mlp.experts.absent"]
)
def test_a_policy_for_another_model_does_not_take_forever(pattern: str) -> None:
    model = inventory("DeepSeek-V3")
    layers = {pattern.replace("{}", str(i)): "fp8" for i in range(300)}
    start = time.process_time()
    resolved = plan(model, layers)
    # A tenth of a second is enough; trying every name for every dead rule would take minutes.
    assert time.process_time() - start < 20
    assert len(findings(resolved, "PQ101")) == 300


# --- rules that others overrule --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "overruled"),
    [
        ({"*.mlp": "fp8", "*": "int8"}, {"*.mlp"}),
        ({"*.mlp": "fp8", "model.layers.0": "int8"}, set()),
        ({"*.down_proj": "fp8", "*.mlp": "int8", "*": "none"}, {"*.down_proj", "*.mlp"}),
        # Of a rule that says several things one that is left is enough.
        ({"*.up_proj": {"method": "fp8", "output": "fp16"}, "*.mlp": "int8"}, set()),
        ({"*.up_proj": {"method": "fp8", "output": "fp16"}, "*.mlp": "none"}, {"*.up_proj"}),
        ({"*.mlp": "fp8_block", "*.up_proj": {"input": {"group": 64}}, "model": "fp8_block"}, {"*.mlp", "*.up_proj"}),
        ({"*.self_attn": {"kv_cache": "fp8"}, "model": {"kv_cache": "fp8_e5m2"}}, {"*.self_attn"}),
        # A rule that says what another said before is no worse for it.
        ({"*.mlp": "fp8", "*.down_proj": "fp8"}, set()),
    ],
)
def test_rules_that_others_overrule_everywhere(layers: dict[str, Any], overruled: set[str]) -> None:
    warnings = findings(plan(llama(), layers), "PQ201")
    assert len(warnings) == len(overruled)
    assert all(any(repr(pattern) in warning for warning in warnings) for pattern in overruled)


def test_a_presets_rule_may_be_overruled_in_silence() -> None:
    assert codes(plan(llama(), {"*": "int8"}, extends="fp8-dynamic")) == []


def test_an_overruled_rule_names_those_that_beat_it() -> None:
    rules = [
        {"match": "*.mlp", "method": "fp8"},
        {"match": "*.down_proj", "method": "int8"},
        {"match": "*.{gate,up}_proj", "method": "none"},
    ]
    (warning,) = [finding for finding in plan(llama(), rules).findings if finding.code == "PQ201"]
    assert warning.layers
    assert "it is overruled everywhere" in warning.message


# --- the policy as a whole -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "warned"),
    [
        ({}, True),
        ({"default": "none"}, True),
        ({"layers": {"*": "none"}}, True),
        ({"layers": {"*.act_fn": {"output": "fp16"}}}, True),
        ({"layers": {"*": "fp8"}}, False),
        ({"layers": {"*": {"kv_cache": "fp8"}}}, False),
        ({"layers": {"*.mlp": "dequantize"}}, True),
        ({"default": "int8"}, False),
    ],
)
def test_a_policy_that_quantizes_nothing(policy: dict[str, Any], warned: bool) -> None:
    assert ("PQ204" in codes(plan(llama(), **policy), "warning")) == warned


def test_warnings_stop_work_only_when_asked_to() -> None:
    resolved = plan(llama(), {"*": "none"})
    assert resolved.errors() == []
    assert [finding.code for finding in resolved.errors(strict=True)] == ["PQ204"]


def test_errors_come_first() -> None:
    resolved = plan(deepseek(), {"decoder.*.moe": "fp8", "*.absent": "fp8", "*.shared_head.*": "fp8"})
    levels = [finding.level for finding in resolved.findings]
    assert levels == sorted(levels, key=["error", "warning", "note"].index)
    assert set(levels) == {"error", "warning", "note"}


def test_findings_of_the_source_are_findings_of_the_plan() -> None:
    model = Inventory.from_tensors(
        [("lm_head.weight", (64, 32), "BF16"), ("model.embed_tokens.weight", (64, 32), "BF16")],
        config={"model_type": "llama", "tie_word_embeddings": True},
    )
    assert model.findings
    assert set(model.findings) <= set(plan(model, default="none").findings)
