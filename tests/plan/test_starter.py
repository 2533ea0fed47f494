"""The starter policy: fit for the model it is written for, as it stands and with each suggestion taken up."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from policyquant import Finding, Inventory, Plan, load_policy, resolve
from policyquant.plan.starter import GENERAL, starter_policy
from tests.plan.models import MODELS, inventory, llama_without_shapes, module_inventory, tied_llama

REAL = sorted(path.name.removesuffix(".json.gz") for path in MODELS.glob("*.json.gz"))

SUGGESTION = re.compile(r"  # (?=\".*\": )")


def resolved(text: str, model: Inventory, directory: Path) -> Plan:
    path = directory / "policy.yaml"
    path.write_text(text, encoding="utf-8")
    return resolve(load_policy(path), model)


def serious(plan: Plan) -> list[Finding]:
    return [finding for finding in plan.findings if finding.level != "note"]


def suggestions(text: str) -> Iterator[str]:
    """The policy with each suggested rule in force, one at a time, and with the expectations."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if SUGGESTION.match(line):
            yield "\n".join([*lines[:number], SUGGESTION.sub("  ", line), *lines[number + 1 :]])
    yield re.sub(r"^# expect:\n#   bits", "expect:\n  bits", text, flags=re.MULTILINE)


@pytest.mark.parametrize("name", REAL)
def test_it_is_clean_on_its_model(name: str, tmp_path: Path) -> None:
    model = inventory(name)
    plan = resolved(starter_policy(model), model, tmp_path)
    assert serious(plan) == []
    assert any(row.scheme.weight or row.scheme.kv_cache for row in plan.rows)


@pytest.mark.parametrize("name", REAL)
def test_every_suggestion_is_clean_too_and_changes_something(name: str, tmp_path: Path) -> None:
    model = inventory(name)
    text = starter_policy(model)
    before = resolved(text, model, tmp_path).rows
    *rules, expectations = suggestions(text)
    assert rules
    for suggested in rules:
        plan = resolved(suggested, model, tmp_path)
        assert serious(plan) == []
        assert [(row.indices, row.scheme) for row in plan.rows] != [(row.indices, row.scheme) for row in before]
    assert expectations != text
    assert load_policy(tmp_path / "policy.yaml").expected_bits == ()
    assert serious(resolved(expectations, model, tmp_path)) == []
    assert len(load_policy(tmp_path / "policy.yaml").expected_bits) == 1


@pytest.mark.parametrize("name", ["Mixtral-8x7B-v0.1", "DeepSeek-V3", "gpt-oss-120b", "gemma-3-4b-it", "gpt2"])
def test_it_fits_the_same_model_by_module_names(name: str, tmp_path: Path) -> None:
    model = module_inventory(name)
    plan = resolved(starter_policy(model), model, tmp_path)
    # The configurations of two of them promise a quantized checkpoint, which a module tree is not.
    assert [finding for finding in serious(plan) if finding not in model.findings] == []


def test_what_it_says_of_mixtral() -> None:
    text = starter_policy(inventory("Mixtral-8x7B-v0.1"))
    assert (
        """
layers:
  # Routed experts: 768 layers, 45.1B parameters, 96.6 %
  #   model.layers.{0..31}.block_sparse_moe.experts.{0..7}
  "decoder.*.moe.experts": fp8

  # Attention projections: 128 layers, 1.34B parameters, 2.9 %
  #   model.layers.{0..31}.self_attn
  "decoder.*.attention": fp8

  # Protected: only a rule that names one of these quantizes it.
  #   lm_head  (head)
  #   model.embed_tokens  (embedding)
  #   model.layers.{0..31}.block_sparse_moe.gate  (router, 32 layers)
  # "lm_head": fp8

  # KV cache: 32 layers. Half its memory, for long contexts and large batches.
  # "model.layers.*.self_attn": {kv_cache: fp8}

  # First and last blocks are the most sensitive. A later rule decides anew, so these stand last.
  # "model.layers.{0..1,-2..-1}": none  # of 32 blocks

# Assertions: `policyquant check` fails if they do not hold, and no work starts.
# expect:
#   bits_per_weight: "<= 8.1"  # of the rules as they stand above
"""
        in text
    )
    assert "#   decoder.{0..31}.attention.q_proj       linear, 32     model.layers.{0..31}.self_attn.q_proj\n" in text
    assert (
        "#   decoder.{0..31}.moe.experts.up_proj    moe, 256       "
        "model.layers.{0..31}.block_sparse_moe.experts.{0..7}.w3\n" in text
    )


@pytest.mark.parametrize(
    ("name", "left_alone"),
    [
        ("DeepSeek-V3", {"linear", "moe"}),  # stored in FP8
        ("gpt-oss-120b", {"moe"}),  # stored in MXFP4
        ("gemma-3-4b-it", set()),
    ],
)
def test_what_is_stored_quantized_stays_so(name: str, left_alone: set[str], tmp_path: Path) -> None:
    model = inventory(name)
    plan = resolved(starter_policy(model), model, tmp_path)
    quantized = {row.kind for row in plan.rows if row.scheme.weight is not None}
    assert quantized & left_alone == set()
    assert not any(row.stored and row.scheme.weight for row in plan.rows)


@pytest.mark.parametrize("name", ["gemma-3-4b-it", "Qwen2.5-VL-7B-Instruct"])
def test_a_vision_tower_beside_a_language_model_is_left_alone(name: str, tmp_path: Path) -> None:
    model = inventory(name)
    plan = resolved(starter_policy(model), model, tmp_path)
    assert not any(row.scheme.weight for row in plan.rows if row.form.template.startswith("vis"))


def test_a_vision_model_is_quantized(tmp_path: Path) -> None:
    model = inventory("vit-base-patch16-224")
    plan = resolved(starter_policy(model), model, tmp_path)
    assert sum(row.count for row in plan.rows if row.scheme.method == "fp8") == 12 * 6


def test_a_tied_head_is_offered_a_method_that_takes_embeddings() -> None:
    assert '  # "lm_head": fp8_weight_only\n' in starter_policy(tied_llama())


def test_without_shapes_nothing_is_claimed_of_sizes(tmp_path: Path) -> None:
    text = starter_policy(llama_without_shapes())
    assert "an unknown number of parameters" in text
    assert "bits_per_weight" not in text
    assert serious(resolved(text, llama_without_shapes(), tmp_path)) == []


HOSTILE = [
    ("evil\n]: {{*&!%@`.q_proj.weight", (64, 64), "F32"),
    ("a.\u2028\x85\ufeff\U000e0001.fc1.weight", (64, 64), "F32"),
    ('quo"te\\.fc1.weight', (64, 64), "F32"),
    ("st*r[x]{y}?.fc1.weight", (64, 64), "F32"),
]


def test_no_name_can_break_out_of_the_text(tmp_path: Path) -> None:
    model = Inventory.from_tensors(HOSTILE, name="x\nlayers: {'*': int8}\n#\u2029")
    text = starter_policy(model)
    plan = resolved(text, model, tmp_path)
    assert serious(plan) == []
    assert {layer.name: layer.method for layer in plan.layers() if layer.kind == "linear"} == {
        name.removesuffix(".weight"): "fp8" for name, _, _ in HOSTILE
    }
    assert all(character.isprintable() for character in text.replace("\n", ""))


def test_a_model_whose_names_do_not_repeat_gets_one_rule(tmp_path: Path) -> None:
    model = Inventory.from_tensors((f"m{i}.fc{i % 2 + 1}.weight", (64, 64), "F32") for i in range(1000))
    text = starter_policy(model)
    assert len(text.splitlines()) < 300
    plan = resolved(text, model, tmp_path)
    assert serious(plan) == []
    assert plan.total.layers == sum(row.count for row in plan.rows if row.scheme.method == "fp8")


def test_a_model_with_nothing_to_quantize_says_so(tmp_path: Path) -> None:
    model = Inventory.from_tensors([("x.weight", (64,), "F32")])
    text = starter_policy(model)
    assert "nothing in this model is known to be something a method takes" in text
    assert [finding.code for finding in serious(resolved(text, model, tmp_path))] == ["PQ204"]


# --- without a model -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REAL)
def test_the_general_starter_has_no_errors_on_any_model(name: str, tmp_path: Path) -> None:
    assert resolved(GENERAL, inventory(name), tmp_path).errors() == []


def test_its_suggestions_are_rules(tmp_path: Path) -> None:
    lines = [
        re.sub(r"^(\s*)# (?=head: fp8|\"|default: |expect:|  layers: |  bits)", r"\1", line)
        for line in GENERAL.splitlines()
    ]
    text = "\n".join(lines)
    plan = resolved(text, inventory("Mixtral-8x7B-v0.1"), tmp_path)
    # Its expectation says that the head is not quantized, and the suggestion before it quantizes it.
    assert [(finding.level, finding.code) for finding in serious(plan)] == [("error", "PQ111")]
    assert len(load_policy(tmp_path / "policy.yaml").rules) == 6
