"""Kernels with matrix products compile to the machine code that their cases expect.."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.proof.compiled import proven
from tests.proof.families import PRODUCTS


@pytest.mark.parametrize("family", PRODUCTS)
def test_the_machine_code_is_as_expected(family: str, tmp_path: Path) -> None:
    rows = proven(tmp_path, family, "--quick")
    assert {row["architecture"] for row in rows} >= {89, 90, 100}
    assert any(row["matrix"] for row in rows)
