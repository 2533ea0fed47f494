"""Running the command line: in this process for speed, in one of its own for what only a process has."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from policyquant.cli.main import main

ROOT = Path(__file__).parents[2]
MIXTRAL = str(ROOT / "tests/data/models/Mixtral-8x7B-v0.1.json.gz")
EXPERTS_FP8 = str(ROOT / "tests/data/policies/mixtral-experts-fp8.yaml")


def model(name: str) -> str:
    """The path of one of the real models."""
    return str(ROOT / "tests" / "data" / "models" / f"{name}.json.gz")


class Outcome(NamedTuple):
    """What a run left behind."""

    status: int
    out: str
    err: str


class Run:
    """Calls `main` as a process would, and gives what it printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: object) -> Outcome:
        status = main([str(word) for word in words])
        out, err = self._capsys.readouterr()
        return Outcome(status, out, err)


def process(
    *words: object, environment: Mapping[str, str] | None = None, directory: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs `python -m policyquant`, both outputs captured."""
    return subprocess.run(
        command(*words),
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, **(environment or {})},
        cwd=directory,
        check=False,
    )


def command(*words: object) -> list[str]:
    """The words that start it."""
    return [sys.executable, "-m", "policyquant", *map(str, words)]
