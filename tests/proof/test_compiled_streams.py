"""Kernels without matrix products compile to the machine code that their cases expect.

The families are in two files so that two workers of pytest share them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.proof.compiled import proven
from tests.proof.families import STREAMS


@pytest.mark.parametrize("family", STREAMS)
def test_the_machine_code_is_as_expected(family: str, tmp_path: Path) -> None:
    rows = proven(tmp_path, family, "--quick")
    assert {row["architecture"] for row in rows} >= {89, 90, 100}
    assert not any(row["matrix"] for row in rows)
