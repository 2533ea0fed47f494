"""Fixtures of the command line's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import Run


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """The command line, run in this process."""
    return Run(capsys)


@pytest.fixture
def in_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory to work in, so that messages show short names."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
