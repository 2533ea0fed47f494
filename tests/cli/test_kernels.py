"""`policyquant kernels`: what runs each operator, here and elsewhere."""

from __future__ import annotations

import json

import pytest

from tests.cli.command import Run, process

CALL = "scaled_mm m=1 n=4096 k=4096 block"


def test_every_operator_is_listed_with_what_runs_it(run: Run) -> None:
    status, out, err = run("kernels", "--json", "--quiet", "--capability", "9.0")
    assert (status, err) == (0, "")
    report = json.loads(out)
    rows = {row["operator"]: row for row in report["operators"]}
    assert rows["scaled_mm"]["runs"][-1] == "torch"
    assert "compute capability 9.0" in report["GPU"]


def test_an_old_gpu_is_told_what_it_lacks(run: Run) -> None:
    out = run("kernels", "--capability", "8.0").out
    assert "it needs compute capability 8.9, found 8.0" in out
    assert "\nscaled_mm " in out


def test_a_call_is_explained_for_a_gpu_that_is_not_here(run: Run) -> None:
    status, out, err = run("kernels", "--explain", CALL, "--capability", "9.0")
    assert (status, err) == (0, "")
    assert out.startswith("block_scaled_mm: triton runs it\n")
    assert "with scales of blocks it needs a multiple of 4 rows, found 1" in out


def test_an_explanation_as_json_has_each_implementation_with_its_reason(run: Run) -> None:
    report = json.loads(run("kernels", "--explain", CALL, "--capability", "8.0", "--json").out)
    assert (report["operator"], report["runs"]) == ("block_scaled_mm", "torch")
    reasons = {each["name"]: each["reason"] for each in report["implementations"]}
    assert reasons["torch"] is None
    assert all(reason for name, reason in reasons.items() if name != "torch")


def test_what_the_environment_forces_is_told_and_holds() -> None:
    asked = {"POLICYQUANT_KERNELS": "scaled_mm=torch"}
    done = process("kernels", "--capability", "9.0", environment=asked)
    assert "scaled_mm=torch" in done.stdout
    done = process("kernels", "--explain", "scaled_mm", "--capability", "9.0", environment=asked)
    assert done.stdout.startswith("scaled_mm: torch runs it")


@pytest.mark.parametrize("words", [["kernels"], ["kernels", "--explain", "scaled_mm"]])
def test_an_environment_that_is_wrong_is_one_line_and_status_2(words: list[str]) -> None:
    done = process(*words, environment={"POLICYQUANT_KERNELS": "tritn"})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: environment variable POLICYQUANT_KERNELS: no operator has an implementation")
    assert "did you mean 'triton'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_what_is_forced_and_cannot_run_is_one_line_and_status_2() -> None:
    asked = {"POLICYQUANT_KERNELS": "scaled_mm=torch_scaled_mm"}
    done = process("kernels", "--explain", "scaled_mm", "--capability", "8.0", environment=asked)
    assert done.returncode == 2
    assert done.stderr.startswith("error: scaled_mm cannot run as 'torch_scaled_mm': it needs compute capability")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--explain", "scaled_m"], "--explain: there is no operator 'scaled_m'; did you mean 'scaled_mm'?"),
        (["--explain", "scaled_mm blok"], "--explain: there is no word 'blok'; did you mean 'block'?"),
        (["--capability", "nine"], "expected a compute capability such as 9.0, found 'nine'"),
        (["biuld"], "expected build, tune or nothing, found 'biuld'; did you mean 'build'?"),
        (["build", "--capability", "9.0"], "`kernels build` goes without --explain and --capability"),
    ],
)
def test_what_is_not_understood_is_told_with_the_nearest(run: Run, words: list[str], message: str) -> None:
    status, out, err = run("kernels", *words)
    assert (status, out) == (2, "")
    assert message in err
