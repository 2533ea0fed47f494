"""Every case compiles to what it expects by the oldest and the newest Triton that the kernels are for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.proof.compiled import ROOT, proven
from tests.proof.families import FAMILIES

OLDER = ROOT / ".triton-3.6"


@pytest.mark.slow
@pytest.mark.skipif(not OLDER.is_dir(), reason="make test-slow installs Triton 3.6 in .triton-3.6")
@pytest.mark.parametrize("family", FAMILIES)
def test_both_versions_of_triton_compile_to_what_is_expected(family: str, tmp_path: Path) -> None:
    rows = proven(tmp_path, family, "--triton", str(OLDER), "--jobs", str(os.cpu_count() or 1))
    versions = {row["triton"] for row in rows}
    assert len(versions) == 2
    assert "3.6.0" in versions
