"""`presets`, `methods`, `schema`, and help: what the command line says about itself."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from policyquant import load_policy
from policyquant.cli.main import COMMANDS
from policyquant.methods.documentation import HEADINGS, documentation
from policyquant.methods.registry import BUILT_IN
from policyquant.policy.methods import METHODS
from policyquant.policy.presets import preset_names
from tests.cli.command import MIXTRAL, Run


def test_presets_are_listed_with_what_they_do(run: Run) -> None:
    lines = run("presets").out.splitlines()[1:]
    assert tuple(line.split()[0] for line in lines) == preset_names()
    assert all(len(line.split()) > 3 for line in lines)


def test_presets_that_run_are_told_from_those_that_are_only_decided(run: Run) -> None:
    status, out, err = run("presets")
    assert status == 0
    assert err == "note: a preset whose method does not run yet is decided and counted, but build refuses it\n"
    runs = {line.split()[0]: " ".join(re.split("  +", line)[1:2]) for line in out.splitlines()[1:]}
    assert runs["fp8-dynamic"] == runs["fp8-kv"] == "yes"
    for name in preset_names():
        methods = {rule.fields.method for rule in load_policy(name).rules} - {None, *BUILT_IN}
        assert runs[name] == (f"not yet: {', '.join(map(str, methods))}" if methods else "yes")


def test_a_preset_that_is_printed_is_the_policy(run: Run, tmp_path: Path) -> None:
    for name in preset_names():
        copy = tmp_path / f"{name}.yaml"
        copy.write_text(run("presets", name).out, encoding="utf-8")
        said, printed = load_policy(name), load_policy(copy)
        assert [rule.kinds for rule in printed.rules] == [rule.kinds for rule in said.rules]
        assert [rule.fields for rule in printed.rules] == [rule.fields for rule in said.rules]


def test_a_preset_that_is_printed_names_no_schema_that_does_not_lie_beside_a_copy(run: Run) -> None:
    for name in preset_names():
        assert "yaml-language-server" not in run("presets", name).out


def test_the_beginning_of_several_presets_lists_them(run: Run) -> None:
    status, out, err = run("presets", "fp8")
    assert (status, out) == (2, "")
    names = "fp8-block, fp8-dynamic, fp8-experts, fp8-kv, fp8-static"
    assert err == f"error: no preset is named 'fp8'; these begin with it: {names}\n"


def test_methods_are_listed_and_described(run: Run) -> None:
    lines = run("methods").out.splitlines()[1:]
    assert [line.split()[0] for line in lines] == list(METHODS)
    for name, spec in METHODS.items():
        described = run("methods", name).out
        assert described.startswith(f"{name}\n\n{spec.summary}\n")
        assert spec.use in described or "\nWhen to use it\n" in described


def test_methods_that_run_are_told_from_those_that_are_only_decided(run: Run) -> None:
    status, out, err = run("methods")
    assert (status, err) == (0, "note: a method that does not run yet is decided and counted, but build refuses it\n")
    runs = {line.split()[0]: line.split()[1] == "yes" for line in out.splitlines()[1:]}
    assert runs == {name: name in BUILT_IN for name in METHODS}
    assert "runs                yes" in run("methods", "fp8").out.splitlines()
    assert (
        "runs    not yet: it is decided and counted, but build refuses it" in run("methods", "nvfp4").out.splitlines()
    )


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_method_that_runs_is_described_by_what_its_file_says(run: Run, name: str) -> None:
    status, out, err = run("methods", name)
    assert (status, err) == (0, "")
    said = documentation(name)
    assert said is not None
    for heading in HEADINGS:
        assert f"\n\n{heading}\n{said.sections[heading]}\n" in out


def test_methods_are_listed_and_described_for_other_programs(run: Run) -> None:
    listed = json.loads(run("methods", "--json").out)
    assert [method["name"] for method in listed] == list(METHODS)
    assert [method["name"] for method in listed if method["runs"]] == list(BUILT_IN)
    for method in listed:
        assert json.loads(run("methods", method["name"], "--json").out) == method
    fp8 = listed[list(METHODS).index("fp8")]
    assert fp8["weight"] == {"dtype": "float8_e4m3fn", "granularity": "channel"}
    assert fp8["input_choices"]["scheme"] == ["dynamic", "static"]
    assert tuple(fp8["sections"]) == HEADINGS


def test_an_unknown_method_is_answered_with_the_nearest(run: Run) -> None:
    status, out, err = run("methods", "fp9")
    assert (status, out) == (2, "")
    assert err.startswith("error: no method is named 'fp9'; did you mean 'fp8'? (known: none, fp8, ")


def test_what_may_be_set_of_a_method_is_told(run: Run) -> None:
    lines = run("methods", "fp8_block").out.splitlines()
    assert "input.group         128, 64, 32" in lines
    assert not any(line.startswith("weight.block") for line in lines), "there is only one, so nothing to choose"
    assert "takes               linear, moe, router (if named), head" in lines


@pytest.mark.parametrize("name", ["policy", "plan"])
def test_schemas_are_printed_as_they_are(run: Run, name: str) -> None:
    shown = run("schema", name).out
    assert shown == (Path(__file__).parents[2] / "schemas" / f"{name}.schema.json").read_text(encoding="utf-8")
    assert json.loads(shown)["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_the_schema_is_the_policys_unless_said_otherwise(run: Run) -> None:
    assert run("schema") == run("schema", "policy")


def test_help_lists_every_command(run: Run) -> None:
    status, out, err = run("--help")
    assert (status, err) == (0, "")
    for name, (_, summary) in COMMANDS.items():
        assert f"  {name} " in out
        assert summary in out


def test_no_command_shows_the_help_as_a_message(run: Run) -> None:
    status, out, err = run()
    assert (status, out) == (2, "")
    assert "commands:" in err


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help_with_an_example(run: Run, name: str) -> None:
    status, out, err = run(name, "--help")
    assert (status, err) == (0, "")
    assert f"example:\n  policyquant {name}" in out
    assert "--strict" in out


@pytest.mark.parametrize("option", ["--quiet", "--verbose", "--strict"])
def test_options_for_all_stand_before_or_after_the_command(run: Run, option: str) -> None:
    words = ("inspect", MIXTRAL, "--policy", "fp8-experts")
    assert run(option, *words) == run(*words, option) == run(words[0], option, *words[1:])
    assert run(option, *words).status == 0
