"""Arguments in the wrong order or of the wrong sort are told as such."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.command import MIXTRAL, Run
from tests.inventory.files_on_disk import write_model


@pytest.fixture
def files(run: Run, in_empty_directory: Path) -> Path:
    """A model, a policy and a plan."""
    shutil.copy(MIXTRAL, "moe.json.gz")
    Path("moe.yaml").write_text('layers:\n  "*.experts": fp8\n', encoding="utf-8")
    assert run("plan", "moe.json.gz", "--policy", "moe.yaml", "-o", "p.json").status == 0
    return in_empty_directory


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("check", "moe.json.gz", "moe.yaml"),
            "moe.json.gz: a model; check takes the policy first: policyquant check moe.yaml moe.json.gz",
        ),
        (
            ("check", "moe.json.gz"),
            "moe.json.gz: a model; check takes the policy first: policyquant check POLICY moe.json.gz",
        ),
        (("check", "moe.yaml", "moe.yaml"), "moe.yaml: a policy, where a model is expected"),
        (("check", "moe.yaml", "p.json"), "p.json: a plan, where a model is expected"),
        (("check", "p.json"), "p.json: a plan, where a policy is expected"),
        (
            ("inspect", "moe.json.gz", "moe.yaml"),
            "one argument too many: 'moe.yaml'; did you mean --policy moe.yaml?",
        ),
        (
            ("inspect", "moe.json.gz", "fp8-kv"),
            "one argument too many: 'fp8-kv'; did you mean --policy fp8-kv?",
        ),
        (("plan", "moe.json.gz", "moe.yaml"), "did you mean --policy moe.yaml?"),
        (("inspect", "moe.json.gz", "--policy", "p.json"), "p.json: a plan, where a policy is expected"),
        (("inspect", "moe.yaml", "--policy", "moe.json.gz"), "moe.json.gz: a model, where a policy is expected"),
        (
            ("explain", "p.json", "lm_head"),
            "p.json: a plan, which holds no rules; explain needs the model, and --policy POLICY",
        ),
        (("explain", "moe.json.gz", "lm_head"), "moe.json.gz: explain needs --policy POLICY"),
        (
            ("diff", "moe.json.gz", "p.json"),
            "one policy or plan is missing: policyquant diff moe.json.gz p.json B",
        ),
        (
            ("match", "moe.json.gz", "*.q_proj"),
            "moe.json.gz: a model; match takes the pattern first: policyquant match '*.q_proj' moe.json.gz",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_was_given_is_told(run: Run, words: tuple[str, ...], message: str) -> None:
    status, out, err = run(*words)
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err


@pytest.fixture
def with_own_policy(in_empty_directory: Path) -> str:
    """A model whose `config.json` holds its policy."""
    policy = {"quant_method": "policyquant", "layers": [{"match": "*.o_proj", "method": "fp8"}]}
    tensors = {"model.layers.0.self_attn.o_proj.weight": ("BF16", [64, 64])}
    write_model(in_empty_directory / "own", tensors, {"model_type": "llama", "quantization_config": policy})
    return "own"


def test_a_model_with_a_policy_of_its_own_is_inspected_under_it(run: Run, with_own_policy: str) -> None:
    status, out, err = run("inspect", with_own_policy)
    assert (status, err) == (0, "")
    assert out.startswith("own under own/config.json\n")
    assert "*.o_proj" in out
    explained = run("explain", with_own_policy, "model.layers.0.self_attn.o_proj", "--json")
    assert json.loads(explained.out)["layer"]["method"] == "fp8"


def test_another_policy_goes_before_the_models_own(run: Run, with_own_policy: str) -> None:
    assert run("inspect", with_own_policy, "--policy", "int8-dynamic").out.startswith("own under int8-dynamic\n")


def test_check_of_a_model_with_a_policy_of_its_own_says_where_that_is(run: Run, with_own_policy: str) -> None:
    status, out, err = run("check", with_own_policy)
    assert (status, out) == (2, "")
    assert "policyquant check own/config.json own" in err
    assert run("check", "own/config.json", with_own_policy).status == 0


@pytest.mark.usefixtures("files")
def test_a_preset_s_name_means_the_preset_whatever_lies_there(run: Run) -> None:
    Path("fp8-kv").mkdir()
    assert run("check", "fp8-kv", "moe.json.gz").status == 0


@pytest.mark.usefixtures("files")
def test_a_pattern_may_be_spelled_as_a_file_is(run: Run) -> None:
    Path("lm_head").mkdir()
    status, out, _ = run("match", "lm_head", "moe.json.gz")
    assert (status, out.splitlines()[-1]) == (0, "1 layer, by checkpoint names")


@pytest.mark.usefixtures("files")
def test_a_policy_that_speaks_of_what_models_have_is_still_a_policy(run: Run) -> None:
    policy = {"layers": [{"match": "tensors", "kind": "moe", "method": "fp8", "optional": True}]}
    Path("policy.json").write_text(json.dumps(policy), encoding="utf-8")
    assert run("check", "policy.json", "moe.json.gz").status == 0
