"""`policyquant kernels build` where nothing can be built."""

from __future__ import annotations

from pathlib import Path

import pytest

from policyquant.kernels.cuda import build, library
from tests.cli.command import Run


def test_without_nvcc_it_says_what_is_missing_in_one_line(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "USUAL_PLACE", tmp_path / "nvcc")
    # Other tests of this process may have put another library in its place.
    monkeypatch.setattr(library, "_on_cpu", [])
    status, out, err = run("kernels", "build")
    assert (status, out) == (2, "")
    assert err == (
        "error: the CUDA library cannot be built: nvcc is not found: install the CUDA toolkit, and set CUDA_HOME if it"
        " is in no usual place\n"
    )
