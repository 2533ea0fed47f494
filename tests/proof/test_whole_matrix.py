"""Every case compiles to what it expects by the oldest and the newest Triton that the kernels are for."""

from __future__ import annotations

import os
from itertools import product
from pathlib import Path

import pytest

from tests.proof.compiled import ROOT, proven
from tests.proof.families import FAMILIES

OLDER = ROOT / ".triton-3.6"


@pytest.mark.slow
@pytest.mark.skipif(not OLDER.is_dir(), reason="make test-slow installs Triton 3.6 in .triton-3.6")
def test_both_versions_of_triton_compile_to_what_is_expected(tmp_path: Path) -> None:
    # All families together: Triton is imported once a version, and no core waits for the last kernel of each.
    rows = proven(tmp_path, "--triton", str(OLDER), "--jobs", str(os.cpu_count() or 1))
    versions = {row["triton"] for row in rows}
    assert len(versions) == 2
    assert "3.6.0" in versions
    assert {(row["family"], row["triton"]) for row in rows} == set(product(FAMILIES, versions))
