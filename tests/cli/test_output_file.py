"""A file appears whole or not at all, and nothing else is harmed."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from policyquant.errors import PolicyQuantError
from policyquant.output_file import write_whole
from tests.cli.command import EXPERTS_FP8, MIXTRAL, Run


def test_a_file_that_was_there_is_replaced_and_keeps_its_permissions(tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    target.write_text("old")
    target.chmod(0o600)
    write_whole(target, b"new")
    assert target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert [*tmp_path.iterdir()] == [target]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to("real.json")
    write_whole(tmp_path / "link.json", b"new")
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "real.json").read_text() == "new"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes on this system")
def test_a_pipe_is_written_into_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_whole(pipe, b"data")
    reader.join(timeout=10)
    assert read == [b"data"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_device_is_written_into_and_not_replaced() -> None:
    write_whole(os.devnull, b"data")
    assert not Path(os.devnull).is_file()


def test_a_name_as_long_as_can_be_is_written(tmp_path: Path) -> None:
    target = tmp_path / ("x" * 250 + ".json")
    write_whole(target, b"data")
    assert target.read_bytes() == b"data"


@pytest.mark.parametrize("name", ["", "new/", "missing/plan.json"])
def test_what_cannot_be_written_is_an_error_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    with pytest.raises(PolicyQuantError, match="cannot be written"):
        write_whole(f"{tmp_path}/{name}", b"data")
    assert [*tmp_path.iterdir()] == []


def test_a_plan_does_not_overwrite_what_it_was_made_from(run: Run, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("layers: {'*.mlp': none}\n")
    model = tmp_path / "model.json.gz"
    model.write_bytes(Path(MIXTRAL).read_bytes())
    for target in (policy, model):
        before = target.read_bytes()
        outcome = run("plan", model, "--policy", EXPERTS_FP8 if target is model else policy, "-o", target)
        assert outcome.status == 2
        assert "it is what this was made from" in outcome.err
        assert target.read_bytes() == before


def test_an_inventory_does_not_overwrite_the_file_that_it_was_read_from(run: Run, tmp_path: Path) -> None:
    model = tmp_path / "model.json.gz"
    model.write_bytes(Path(MIXTRAL).read_bytes())
    assert run("inventory", model, "--save", model).status == 2
    assert model.read_bytes() == Path(MIXTRAL).read_bytes()


def test_running_as_a_module_imports_nothing_from_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "yaml.py").write_text("raise SystemExit('this must not run')\n")
    (tmp_path / "policy.yaml").write_text("layers: {'*.mlp': none}\n")
    done = subprocess.run(
        [sys.executable, "-m", "policyquant", "check", "policy.yaml"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "policy.yaml: valid (1 rule)\n")
