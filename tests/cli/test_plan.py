"""`plan`: the lock file, and when there is none."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from policyquant import read_plan
from tests.cli.command import EXPERTS_FP8, MIXTRAL, Run, model


def test_the_plan_is_written_and_summed_up(run: Run, in_empty_directory: Path) -> None:
    status, out, err = run("plan", MIXTRAL, "--policy", EXPERTS_FP8, "-o", "plan.json")
    assert (status, out) == (0, "")
    assert err == "plan.json: 768 of 1,059 layers quantized, 87.0 GiB -> 45.0 GiB, 8.28 bits per weight\n"
    assert read_plan("plan.json")["model.layers.0.block_sparse_moe.experts.0.w1"].method == "fp8"
    assert [path.name for path in in_empty_directory.iterdir()] == ["plan.json"]


@pytest.mark.parametrize("name", ["plan.json", "plan.json.gz", "locked"])
@pytest.mark.usefixtures("in_empty_directory")
def test_inspect_reads_it_back(run: Run, name: str) -> None:
    run("plan", MIXTRAL, "--policy", EXPERTS_FP8, "-o", name)
    assert run("inspect", name).out == run("inspect", MIXTRAL, "--policy", EXPERTS_FP8).out


@pytest.mark.parametrize("to_stdout", [(), ("-o", "-")])
def test_without_a_file_it_is_printed(run: Run, to_stdout: tuple[str, ...]) -> None:
    status, out, err = run("plan", MIXTRAL, "--policy", EXPERTS_FP8, *to_stdout)
    assert (status, json.loads(out)["version"]) == (0, 1)
    assert err == "768 of 1,059 layers quantized, 87.0 GiB -> 45.0 GiB, 8.28 bits per weight\n"
    assert out == run("inspect", MIXTRAL, "--policy", EXPERTS_FP8, "--json").out


def test_a_name_that_ends_in_gz_is_compressed(run: Run, in_empty_directory: Path) -> None:
    run("plan", MIXTRAL, "--policy", EXPERTS_FP8, "-o", "plan.json")
    run("plan", MIXTRAL, "--policy", EXPERTS_FP8, "-o", "plan.json.gz")
    assert gzip.decompress(Path("plan.json.gz").read_bytes()) == Path("plan.json").read_bytes()


def test_two_runs_give_one_text(run: Run) -> None:
    words = ("plan", model("DeepSeek-V3"), "--policy", "fp8-kv")
    assert run(*words).out == run(*words).out


@pytest.mark.parametrize(
    ("policy", "words", "said"),
    [
        ("layers: {'*.w9': fp8}", (), "error PQ101"),
        ("layers: {'*': none}", ("--strict",), "warning PQ204"),
    ],
)
def test_nothing_is_written_if_the_plan_has_errors(
    run: Run, in_empty_directory: Path, policy: str, words: tuple[str, ...], said: str
) -> None:
    Path("policy.yaml").write_text(policy)
    Path("plan.json").write_text("what was there")
    status, out, err = run("plan", MIXTRAL, "--policy", "policy.yaml", "-o", "plan.json", *words)
    assert (status, out) == (1, "")
    assert said in err
    assert err.splitlines()[-1].endswith("in the plan; plan.json is not written")
    assert Path("plan.json").read_text() == "what was there"


def test_nor_is_it_printed(run: Run, in_empty_directory: Path) -> None:
    Path("policy.yaml").write_text("layers: {'*.w9': fp8}")
    status, out, err = run("plan", MIXTRAL, "--policy", "policy.yaml")
    assert (status, out) == (1, "")
    assert err.splitlines()[-1].endswith("in the plan; nothing is printed")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            (MIXTRAL, "--policy", EXPERTS_FP8, "-o", "missing/plan.json"),
            "missing/plan.json: cannot be written: No such",
        ),
        ((MIXTRAL, "--policy", EXPERTS_FP8, "-o", "."), ".: cannot be written: Is a directory"),
        ((MIXTRAL, "--policy", EXPERTS_FP8, "-o", "a\0b"), "cannot be written: embedded null byte"),
        ((MIXTRAL, "--policy", "missing.yaml", "-o", "plan.json"), "missing.yaml: no such file"),
        (("missing", "--policy", EXPERTS_FP8), "missing: no such file or directory"),
        ((MIXTRAL,), "plan needs --policy POLICY"),
    ],
)
def test_what_cannot_be_done_is_said(run: Run, in_empty_directory: Path, words: tuple[str, ...], said: str) -> None:
    status, out, err = run("plan", *words)
    assert (status, out) == (2, "")
    assert said in err
    assert list(in_empty_directory.iterdir()) == []
