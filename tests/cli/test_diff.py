"""`diff`: two policies on one model, two plans, two models under one policy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import EXPERTS_FP8, MIXTRAL, Run, model


@pytest.fixture
def written(in_empty_directory: Path) -> Path:
    """A directory with two policies."""
    Path("old.yaml").write_text('layers:\n  "*.self_attn": fp8\n')
    Path("new.yaml").write_text(
        'layers:\n  "*.self_attn": fp8\n  "*.qkv_proj": none\n  "decoder.*.attention": {kv_cache: fp8}\n'
    )
    return in_empty_directory


def test_two_policies(run: Run, written: Path) -> None:
    status, out, err = run("diff", MIXTRAL, "old.yaml", "new.yaml")
    assert (status, err) == (1, "")
    # fmt: off
    assert out.splitlines() == [
        "old.yaml -> new.yaml on Mixtral-8x7B-v0.1",
        "",
        "name                                   layers  kind       before                      after                                 bytes before  bytes after  rule before                rule after",  # noqa: E501
        "model.layers.{0..31}.self_attn.k_proj      32  linear     fp8                         none                                       128 MiB      256 MiB  *.self_attn at old.yaml:2  *.qkv_proj at new.yaml:3",  # noqa: E501
        "model.layers.{0..31}.self_attn             32  attention  none, KV cache as computed  none, KV cache fp8 per tensor static                                                        decoder.*.attention at new.yaml:4",  # noqa: E501
        "model.layers.{0..31}.self_attn.q_proj      32  linear     fp8                         none                                       512 MiB     1.00 GiB  *.self_attn at old.yaml:2  *.qkv_proj at new.yaml:3",  # noqa: E501
        "model.layers.{0..31}.self_attn.v_proj      32  linear     fp8                         none                                       128 MiB      256 MiB  *.self_attn at old.yaml:2  *.qkv_proj at new.yaml:3",  # noqa: E501
        "",
        "differ           128 layers of 1,059",
        "bytes            85.7 GiB -> 86.5 GiB (100.9 %)",
        "bits per weight  15.77 -> 15.91",
    ]
    # fmt: on


def test_a_policy_does_not_differ_from_itself(run: Run, written: Path) -> None:
    status, out, err = run("diff", MIXTRAL, "old.yaml", "old.yaml")
    assert (status, err) == (0, "")
    assert out.splitlines()[2].split() == ["differ", "no", "layer"]


def test_a_lock_against_todays_policy(run: Run, written: Path) -> None:
    run("plan", MIXTRAL, "--policy", "old.yaml", "-o", "plan.json")
    assert run("diff", MIXTRAL, "plan.json", "old.yaml").status == 0
    assert run("diff", MIXTRAL, "old.yaml", "plan.json").status == 0
    assert run("diff", MIXTRAL, "plan.json", "new.yaml").status == 1


def test_two_plans(run: Run, written: Path) -> None:
    run("plan", MIXTRAL, "--policy", "old.yaml", "-o", "old.json")
    run("plan", MIXTRAL, "--policy", "new.yaml", "-o", "new.json.gz")
    status, out, _ = run("diff", "old.json", "new.json.gz")
    of_policies = run("diff", MIXTRAL, "old.yaml", "new.yaml").out
    assert status == 1
    assert out.splitlines()[1:] == of_policies.splitlines()[1:]


def test_two_models_under_one_policy(run: Run) -> None:
    status, out, _ = run("diff", "--policy", "fp8-experts", MIXTRAL, model("WizardLM-2-8x22B"))
    assert status == 1
    w1 = next(line for line in out.splitlines() if "{0..31}.block_sparse_moe.experts.{0..7}.w1" in line)
    assert w1.split()[1:7] == ["256", "moe", "fp8,", "14336x4096", "fp8,", "16384x6144"]
    added = next(line for line in out.splitlines() if "{32..55}.block_sparse_moe.experts.{0..7}.w1" in line)
    assert added.split()[1:6] == ["192", "moe", "not", "there", "fp8"]
    assert "792 only after" in out


def test_json(run: Run, written: Path) -> None:
    status, out, _ = run("diff", MIXTRAL, "old.yaml", "new.yaml", "--json")
    document = json.loads(out)
    assert status == 1
    assert document["before"]["policy"]["source"] == "old.yaml"
    assert [(each["layers"], each["fields"], each["count"]) for each in document["changed"]] == [
        (["model.layers.{0..31}.self_attn.k_proj"], ["method", "weight", "input"], 32),
        (["model.layers.{0..31}.self_attn"], ["kv_cache"], 32),
        (["model.layers.{0..31}.self_attn.q_proj"], ["method", "weight", "input"], 32),
        (["model.layers.{0..31}.self_attn.v_proj"], ["method", "weight", "input"], 32),
    ]
    assert document["changed"][0]["after"]["rule"]["pattern"] == "*.qkv_proj"
    assert (document["removed"], document["added"]) == ([], [])


def test_markdown(run: Run, written: Path) -> None:
    out = run("diff", MIXTRAL, "old.yaml", "new.yaml", "--format", "markdown").out
    assert out.startswith("# old.yaml -> new.yaml on Mixtral-8x7B-v0.1\n\n| name | layers |")
    assert "| `model.layers.{0..31}.self_attn.q_proj` | 32 | linear | fp8 | none |" in out
    assert "\n- differ: 128 layers of 1,059\n" in out


def test_errors_of_one_side_are_told_and_give_status_1(run: Run, written: Path) -> None:
    Path("new.yaml").write_text('layers:\n  "*.self_attn": fp8\n  "*.w9": {method: fp8}\n')
    status, out, err = run("diff", MIXTRAL, "old.yaml", "new.yaml")
    assert status == 1
    assert "no layer" in out
    assert err.startswith("new.yaml: 1 error\nerror PQ101: new.yaml:3:3: '*.w9' reaches no layer")


def test_a_plan_of_another_model_is_told(run: Run, written: Path) -> None:
    run("plan", model("Mistral-7B-v0.1"), "--policy", "old.yaml", "-o", "plan.json")
    status, _, err = run("diff", MIXTRAL, "plan.json", "old.yaml")
    assert status == 1
    assert err == "note: the plan is for Mistral-7B-v0.1, compared with Mixtral-8x7B-v0.1\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((MIXTRAL,), "diff takes MODEL A B, two plans, or --policy P and two models; found 1 argument"),
        ((MIXTRAL, "old.yaml", "new.yaml", "more.yaml"), "found 4 arguments"),
        (("old.yaml", "new.yaml"), "old.yaml: no plan; to compare policies, name the model first"),
        (("plan.json", "old.yaml"), "plan.json: no such file"),
        ((MIXTRAL, "old.yaml", "neww.yaml"), "neww.yaml: no such file; did you mean 'new.yaml'?"),
        (("Mixtral", "old.yaml", "new.yaml"), "Mixtral: no such file or directory"),
        ((MIXTRAL, "old.yaml", "--policy", "new.yaml", "x"), "with --policy, diff takes two models; found 3 arguments"),
        ((MIXTRAL, MIXTRAL, "--policy", "fp9"), "fp9: no such file or preset"),
        ((MIXTRAL, "old.yaml", "new.yaml", "--format", "html"), "invalid choice: 'html'"),
    ],
)
def test_what_is_not_understood(run: Run, written: Path, words: tuple[str, ...], said: str) -> None:
    status, out, err = run("diff", *words)
    assert (status, out) == (2, "")
    assert said in err


def test_plans_where_none_belong(run: Run, written: Path) -> None:
    run("plan", MIXTRAL, "--policy", EXPERTS_FP8, "-o", "plan.json")
    both = run("diff", MIXTRAL, "plan.json", "plan.json")
    assert (both.status, both.err) == (
        2,
        "error: two plans are compared without a model: policyquant diff A.json B.json\n",
    )
    under = run("diff", "plan.json", MIXTRAL, "--policy", "old.yaml")
    assert (under.status, under.err) == (
        2,
        "error: plan.json: a plan has its policy in it; --policy takes two models\n",
    )


def test_a_damaged_plan(run: Run, written: Path) -> None:
    run("plan", MIXTRAL, "--policy", EXPERTS_FP8, "-o", "plan.json")
    text = Path("plan.json").read_text()
    Path("plan.json").write_text(text.replace('"kind": "router"', '"kind": "rooter"', 1))
    status, out, err = run("diff", MIXTRAL, "plan.json", "old.yaml")
    assert (status, out) == (2, "")
    assert "kind: expected a kind, found \"rooter\"; did you mean 'router'?" in err
    assert err.startswith("error: plan.json:")
