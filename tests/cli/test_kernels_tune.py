"""`policyquant kernels tune`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import Run, process
from tests.kernels.tuned import HERE, own_cache, without_gpu

__all__ = ["own_cache"]


@without_gpu
def test_without_a_gpu_it_is_one_line_and_status_2(tmp_path: Path) -> None:
    done = process("kernels", "tune", "norm", environment={"TRITON_INTERPRET": "0", "XDG_CACHE_HOME": str(tmp_path)})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == ("error: there is no GPU to measure on; `kernels tune` is run where the kernels are to run\n")
    assert not list(tmp_path.iterdir())


@without_gpu
def test_the_interpreter_rehearses_it(own_cache: Path, run: Run) -> None:
    status, out, err = run("kernels", "tune", "kv_cache", "--seconds", "4", "--json")
    assert status == 0
    assert err.startswith("Triton's interpreter stands in for a GPU: calls are tiny")
    report = json.loads(out)
    assert (report["GPU"], report["path"]) == (HERE.name, str(HERE.path))
    assert [each["shapes"] for each in report["classes"]] == ["few tokens", "many tokens"]
    assert all(each["before"] > 0 and each["tried"] + each["left"] == 18 for each in report["classes"])
    kept = json.loads(HERE.path.read_bytes())["families"]["kv_cache"]
    faster = {each["shapes"]: each["configuration"] for each in report["classes"] if each["configuration"]}
    assert {name: entry["configuration"] for name, entry in kept.items()} == faster
    tiles = json.loads(run("kernels", "--json").out)["tiles"]
    assert tiles.startswith(f"{len(faster)} measured here, the others shipped" if faster else "shipped")


@without_gpu
@pytest.mark.usefixtures("own_cache")
def test_the_table_has_a_line_for_each_class(run: Run) -> None:
    status, out, err = run("kernels", "tune", "--call", "rms_norm m=2 k=130", "--seconds", "3", "--quiet")
    assert (status, err) == (0, "")
    head, line = out.splitlines()
    assert head.split()[:3] == ["family", "shapes", "µs"]
    assert line.startswith("norm    row 256")


@without_gpu
def test_a_broken_table_is_a_warning_and_no_more(own_cache: Path, run: Run) -> None:
    HERE.path.parent.mkdir(parents=True)
    HERE.path.write_text("{")
    with pytest.warns(RuntimeWarning, match="it is not used: "):
        status, out, _ = run("kernels")
    assert status == 0
    assert "\ntiles         shipped\n" in out


@without_gpu
@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tune", "norms"], "tune: there is no family 'norms'; did you mean 'norm'?"),
        (["tune", "--call", "rms_norn"], "tune: there is no operator 'rms_norn'; did you mean 'rms_norm'?"),
        (["tune", "--call", "rms_norm m=x"], "tune: m is a whole number"),
        (["tune", "--seconds", "0"], "expected a number of seconds above 0, found '0'"),
        (["tune", "--seconds", "nan"], "expected a number of seconds above 0, found 'nan'"),
        (["tune", "--seconds", "soon"], "expected a number of seconds above 0, found 'soon'"),
        (["tune", "--capability", "9.0"], "`kernels tune` goes without --explain and --capability"),
        (["build", "norm"], "`kernels build` takes no more words, found 'norm'"),
        (["--seconds", "3"], "--seconds goes with `kernels tune`"),
        (["--call", "rms_norm"], "--call goes with `kernels tune`"),
        (["tun"], "expected build, tune or nothing, found 'tun'; did you mean 'tune'?"),
    ],
)
def test_what_is_not_understood_is_told(run: Run, words: list[str], message: str) -> None:
    status, out, err = run("kernels", *words)
    assert (status, out) == (2, "")
    assert message in err


@without_gpu
def test_a_table_that_cannot_be_written_is_one_line_and_status_2(own_cache: Path, run: Run) -> None:
    (own_cache / "policyquant").write_text("a file where the folder is to be")
    with pytest.warns(RuntimeWarning, match="it is not used"):
        status, _, err = run("kernels", "tune", "kv_cache", "--seconds", "1", "--quiet")
    assert status == 2
    assert err.startswith(f"error: {HERE.path}: cannot be written: ")


@without_gpu
def test_options_may_stand_between(own_cache: Path, run: Run) -> None:
    assert run("kernels", "tune", "--seconds", "2", "kv_cache", "--quiet").status == 0
