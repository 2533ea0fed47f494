"""`init`: a policy to start from, written where nothing is overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import MIXTRAL, Run, model


def test_it_is_printed(run: Run, in_empty_directory: Path) -> None:
    status, out, err = run("init", MIXTRAL)
    assert (status, err) == (0, "")
    assert out.startswith("# A policy to start from, for Mixtral-8x7B-v0.1 (MixtralForCausalLM):\n")
    assert list(in_empty_directory.iterdir()) == []


def test_what_is_printed_is_a_policy_that_checks(run: Run, in_empty_directory: Path) -> None:
    Path("policy.yaml").write_text(run("init", model("gemma-3-4b-it")).out, encoding="utf-8")
    assert run("check", "policy.yaml", model("gemma-3-4b-it"), "--strict").status == 0


def test_it_is_written_to_a_file(run: Run, in_empty_directory: Path) -> None:
    status, out, err = run("init", MIXTRAL, "-o", "policy.yaml")
    assert (status, out) == (0, "")
    assert err == (f"policy.yaml: written; what it decides: policyquant inspect {MIXTRAL} --policy policy.yaml\n")
    assert Path("policy.yaml").read_text(encoding="utf-8") == run("init", MIXTRAL).out
    assert [path.name for path in in_empty_directory.iterdir()] == ["policy.yaml"]


@pytest.mark.parametrize("link", [False, True])
def test_nothing_is_overwritten_unless_forced(run: Run, in_empty_directory: Path, link: bool) -> None:
    if link:
        Path("policy.yaml").symlink_to("elsewhere.yaml")
    else:
        Path("policy.yaml").write_text("mine")
    status, out, err = run("init", "-o", "policy.yaml")
    assert (status, out, err) == (2, "", "error: policy.yaml: exists already; --force overwrites it\n")
    assert link or Path("policy.yaml").read_text() == "mine"
    assert run("init", "-o", "policy.yaml", "--force").status == 0
    assert Path("policy.yaml").read_text().startswith("# A policy to start from.")
    assert (Path("policy.yaml").is_symlink(), Path("elsewhere.yaml").exists()) == (link, link)


def test_without_a_model(run: Run, in_empty_directory: Path) -> None:
    Path("policy.yaml").write_text(run("init").out)
    status, out, _ = run("check", "policy.yaml")
    assert status == 0
    assert "policy.yaml: valid" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("missing",), "missing: no such file or directory"),
        (("-o", "missing/policy.yaml"), "missing/policy.yaml: cannot be written"),
        ((MIXTRAL, "more"), "one argument too many: 'more'"),
    ],
)
def test_what_cannot_be_done_is_said(run: Run, in_empty_directory: Path, words: tuple[str, ...], said: str) -> None:
    status, out, err = run("init", *words)
    assert (status, out) == (2, "")
    assert said in err


@pytest.mark.parametrize("model", [(), (MIXTRAL,)])
def test_the_commands_in_the_comment_name_the_file_itself(
    run: Run, in_empty_directory: Path, model: tuple[str, ...]
) -> None:
    assert run("init", *model, "-o", "start.yaml").status == 0
    text = (in_empty_directory / "start.yaml").read_text(encoding="utf-8")
    assert "policyquant check start.yaml " in text
    assert "policy.yaml" not in text
