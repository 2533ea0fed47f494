"""`check`: is a policy valid, and does it fit a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import MIXTRAL, Run, model


def write(text: str) -> str:
    Path("policy.yaml").write_text(text, encoding="utf-8")
    return "policy.yaml"


@pytest.mark.usefixtures("in_empty_directory")
def test_a_valid_policy_is_summed_up(run: Run) -> None:
    rules = 'layers: {"*.o_proj": fp8, "*.q_proj": none}\n'
    status, out, err = run(
        "check",
        write(f"version: 1\nextends: fp8-kv\ndefault: int8\n{rules}expect: {{layers: {{head: none}}}}\n"),
    )
    assert (status, err) == (0, "")
    assert out == "policy.yaml: valid (2 rules, 1 more from fp8-kv, a default, 1 expectation)\n"


@pytest.mark.usefixtures("in_empty_directory")
def test_a_policy_that_is_not_valid_shows_every_problem_with_its_place(run: Run) -> None:
    text = 'version: 1\nlayers:\n  "*.o_proj": fp88\n  "*.{q": int8\ndefalt: fp8\n'
    status, out, err = run("check", write(text))
    assert (status, out) == (2, "")
    assert "policy.yaml:3:15: unknown method 'fp88'; did you mean 'fp8'?" in err
    assert all(line.startswith("error: policy.yaml:") for line in err.splitlines())
    assert "policy.yaml:4:" in err
    assert "policy.yaml:5:1" in err
    assert "default" in err.split("policy.yaml:5:1")[1]


def test_a_policy_that_fits_says_what_comes_out(run: Run) -> None:
    status, out, err = run("check", "fp8-experts", MIXTRAL)
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        "fp8-experts fits Mixtral-8x7B-v0.1",
        "768 of 1,059 layers quantized, 87.0 GiB -> 45.0 GiB, 8.28 bits per weight",
    ]


@pytest.mark.usefixtures("in_empty_directory")
@pytest.mark.parametrize(("limit", "status"), [("<= 8.5", 0), ("<= 4", 1)])
def test_expectations_decide(run: Run, limit: str, status: int) -> None:
    text = f'version: 1\nextends: fp8-experts\nexpect: {{bits_per_weight: "{limit}", layers: {{head: none}}}}\n'
    shown = run("check", write(text), MIXTRAL)
    assert shown.status == status
    if status:
        assert "error PQ113: policy.yaml:3:" in shown.err
        assert shown.out == "policy.yaml does not fit Mixtral-8x7B-v0.1: 1 error\n"
    else:
        assert shown.out.endswith("; 2 expectations met\n")


@pytest.mark.usefixtures("in_empty_directory")
def test_warnings_fit_unless_strict(run: Run) -> None:
    policy = write('version: 1\nlayers: {"*.o_proj": fp8, "*": int8}\n')
    assert run("check", policy, MIXTRAL).status == 0
    assert run("check", policy, MIXTRAL, "--strict").status == 1
    assert run("check", policy, "--strict", MIXTRAL).status == 1


@pytest.mark.parametrize("name", ["Meta-Llama-3-8B", "DeepSeek-V3", "t5-small"])
def test_presets_fit_real_models(run: Run, name: str) -> None:
    assert run("check", "fp8-dynamic", model(name)).status == 0


def test_a_cache_is_told_apart_from_quantized_layers(run: Run) -> None:
    outcome = run("check", "fp8-kv", MIXTRAL).out.splitlines()[1]
    assert outcome.startswith("0 of 1,059 layers quantized, KV cache quantized in 32 layers, 87.0 GiB")


@pytest.mark.usefixtures("in_empty_directory")
def test_layers_that_stay_quantized_as_they_are_stored_are_counted(run: Run) -> None:
    outcome = run("check", write("version: 1\n"), model("gpt-oss-120b")).out.splitlines()[1]
    assert outcome.startswith("0 of ")
    assert " layers quantized, 36 already stored quantized, " in outcome


@pytest.mark.usefixtures("in_empty_directory")
def test_a_layer_that_was_never_quantized_is_not_counted_when_it_is_dequantized(run: Run) -> None:
    status, out, _ = run("check", write('layers: {"*.o_proj": dequantize}\n'), MIXTRAL)
    assert status == 0
    assert out.splitlines()[1].startswith("0 of 1,059 layers quantized")
