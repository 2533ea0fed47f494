"""`explain`: one layer, what is decided about it, and what every rule did."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import EXPERTS_FP8, MIXTRAL, Run, model

EXPERT = "model.layers.0.block_sparse_moe.experts.0.w1"
ROUTER = "model.layers.0.block_sparse_moe.gate"


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """One rule of each fate, for q_proj of Mixtral."""
    monkeypatch.chdir(tmp_path)
    Path("policy.yaml").write_text(
        "version: 1\n"
        "default: int8\n"
        "layers:\n"
        '  - {match: "*", method: fp8_block}\n'
        '  - {match: "*.q_proj", method: fp8}\n'
        '  - {match: "*.self_attn", input: {scheme: static}}\n'
        '  - {match: "*.self_attn", kv_cache: fp8}\n'
        '  - {match: "decoder.*.moe", method: none}\n'
        '  - {match: "*.embed_tokens", method: int8_weight_only}\n',
        encoding="utf-8",
    )
    return "policy.yaml"


def outcomes(run: Run, policy: str, name: str) -> dict[str, str]:
    """Place of each rule → what it did."""
    shown = json.loads(run("explain", MIXTRAL, name, "--policy", policy, "--json").out)
    return {rule["place"].split(":", 1)[1]: rule["outcome"] for rule in shown["parts"][0]["rules"]}


def test_every_rule_is_there_in_order_with_what_it_did(run: Run, policy: str) -> None:
    assert list(outcomes(run, policy, "model.layers.0.self_attn.q_proj").items()) == [
        ("2:10", "overruled"),
        ("4:5", "overruled"),
        ("5:5", "decides"),
        ("6:5", "sets"),
        ("7:5", "passes over"),
        ("8:5", "does not reach"),
        ("9:5", "does not reach"),
    ]


def test_protection_is_shown_at_work(run: Run, policy: str) -> None:
    assert outcomes(run, policy, "lm_head")["4:5"] == "stopped by protection"
    shown = run("explain", MIXTRAL, "lm_head", "--policy", policy).out
    assert "kind              head (protected: only a rule that names it quantizes it or lowers its precision)" in shown
    assert "x  *               fp8_block" in shown
    assert "head layers are protected, and this does not name the layer" in shown


def test_a_rule_that_names_a_protected_layer_decides(run: Run, policy: str) -> None:
    assert outcomes(run, policy, "model.embed_tokens")["9:5"] == "decides"


def test_the_text_for_an_expert(run: Run) -> None:
    status, out, err = run("explain", MIXTRAL, EXPERT, "--policy", EXPERTS_FP8)
    assert (status, err) == (0, "")
    facts, table = out.split("\nrules, the last that reaches it wins:\n\n")
    layers = "model.layers.0.block_sparse_moe.experts"
    assert facts.splitlines() == [
        EXPERT,
        "",
        "kind              moe",
        "shape             14336x4096 bf16",
        f"checkpoint names  {EXPERT}, {layers}.0.gate_up_proj",
        "module names      model.layers.0.mlp.experts.gate_up_proj, model.layers.0.mlp.experts",
        "canonical names   decoder.0.moe.experts.gate_proj, decoder.0.moe.experts.gate_up_proj, decoder.0.moe.experts",
        "decision          fp8; weight fp8 per channel; input fp8 per token",
        f"decided by        decoder.*.moe at {EXPERTS_FP8}:10:3",
        "bytes             112 MiB -> 56.1 MiB",
        f"fused group       decoder.0.moe.experts.gate_up_proj: {layers}.{{0..7}}.w1, {layers}.{{0..7}}.w3",
        "fed by            model.layers.0.post_attention_layernorm",
    ]
    assert [line.split()[:4] for line in table.splitlines()] == [
        ["rule", "says", "outcome", "by"],
        ["=>", "decoder.*.moe", "fp8", "decides"],
        ["*.qkv_proj", "none", "does", "not"],
    ]


@pytest.mark.parametrize(
    "name", [EXPERT.replace("w1", "w2"), "decoder.0.moe.router", "model.layers.0.mlp.gate", ROUTER]
)
def test_any_name_of_a_layer_will_do(run: Run, name: str) -> None:
    shown = run("explain", MIXTRAL, name, "--policy", EXPERTS_FP8, "--json")
    assert shown.status == 0
    assert name in {n for part in json.loads(shown.out)["parts"] for names in part["names"].values() for n in names}


def test_parts_of_a_fused_layer_are_told_apart_where_rules_do(run: Run, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text('version: 1\nlayers:\n  "*.qkv_proj": fp8\n  "*.v_proj": int8\n', encoding="utf-8")
    shown = run("explain", model("Phi-3-mini-4k-instruct"), "model.layers.3.self_attn.qkv_proj", "--policy", policy).out
    prefix = "model.layers.3.self_attn"
    assert f"rules, the last that reaches it wins ({prefix}.q_proj, {prefix}.k_proj):" in shown
    assert f"rules, the last that reaches it wins ({prefix}.v_proj):" in shown


def test_json_holds_the_same_layer_as_inspect(run: Run) -> None:
    explained = json.loads(run("explain", MIXTRAL, EXPERT, "--policy", EXPERTS_FP8, "--json").out)
    inspected = json.loads(run("inspect", MIXTRAL, "--policy", EXPERTS_FP8, "--filter", EXPERT, "--json").out)
    assert [explained["layer"]] == inspected["layers"]
    assert explained["fed_by"] == ["model.layers.0.post_attention_layernorm"]
    assert explained["protected"] is False


def test_ties_are_shown_from_both_ends(run: Run) -> None:
    words = ("explain", model("Qwen3-1.7B"))
    assert "tied to           model.embed_tokens" in run(*words, "lm_head", "--policy", "fp8-dynamic").out
    assert "tied by           lm_head" in run(*words, "model.embed_tokens", "--policy", "fp8-dynamic").out


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.layers.0.self_attn.q_prj", "did you mean 'model.layers.0.self_attn.q_proj'?"),
        ("decoder.0.moe.rooter", "did you mean 'decoder.0.moe.router'?"),
        ("decoder.0.moe", "is a module or a fused name that stands for 26 layers; explain takes one, such as 'model."),
        ("model.layers.0.self_attn.qkv_proj", "stands for 3 layers"),
        ("model.layers.{0..31}.self_attn.q_proj", "is a pattern that stands for 32 layers"),
        ("lm_head.weight", "is a tensor; the layer is 'lm_head'"),
        ("zzz", "no layer is named 'zzz'"),
        ("{", "no layer is named '{'"),
        ("", "no layer is named ''"),
        ("a#b", "no layer is named 'a#b'"),
        ("a." * 500 + "b", "no layer is named"),
        ("q" * 100_000, "no layer is named"),
    ],
    ids=lambda value: value[:30],
)
def test_a_name_of_no_layer_gets_a_helpful_answer(run: Run, name: str, message: str) -> None:
    status, out, err = run("explain", MIXTRAL, name, "--policy", EXPERTS_FP8)
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err


def test_many_rules_that_do_not_reach_the_layer_are_counted(run: Run, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    rules = "".join(f'  "model.layers.{i}.self_attn.o_proj": fp8\n' for i in range(32))
    policy.write_text(f"version: 1\nlayers:\n{rules}", encoding="utf-8")
    words = ("explain", MIXTRAL, "model.layers.7.self_attn.o_proj", "--policy", policy)
    shown = run(*words).out
    assert shown.count("does not reach") == 0
    assert "31 more rules not reaching it (--verbose lists them)" in shown
    assert run(*words, "--verbose").out.count("does not reach") == 31
