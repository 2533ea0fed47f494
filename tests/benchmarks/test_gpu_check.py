"""The check for a GPU is rehearsed, so that no minute of a GPU is lost to a typo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu_check.sh"


def check(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OUT": str(out), "PYTHON": sys.executable}
    return subprocess.run(
        [str(SCRIPT), *arguments], env=environment, capture_output=True, text=True, check=False, cwd=out
    )


def result(out: Path, stage: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((out / f"{stage}.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.slow
def test_every_stage_runs_without_a_gpu(tmp_path: Path) -> None:
    done = check(tmp_path, "--rehearse", "--seconds", "900")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not [row for row in result(tmp_path, "speed")["rows"] if row["status"] != "rehearsed"]  # type: ignore[attr-defined]
    assert (tmp_path / "summary.json").is_file()


def test_without_a_gpu_the_first_stage_says_so(tmp_path: Path) -> None:
    done = check(tmp_path, "--only", "environment")
    assert done.returncode == 1
    assert result(tmp_path, "environment")["status"] == "failed: torch sees no GPU"


def test_a_stage_for_which_no_time_is_left_is_not_measured(tmp_path: Path) -> None:
    check(tmp_path, "--rehearse", "--only", "end_to_end", "--seconds", "1")
    summary = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert summary["end_to_end"]["status"] == "not measured"


def test_a_stage_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    done = check(tmp_path, "--only", "speeed")
    assert done.returncode == 2
    assert "no stage 'speeed'" in done.stderr
