"""A cache of its own for tests of what is measured."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Final

import pytest

from policyquant.kernels import tuning
from policyquant.kernels.tuning.measured import INTERPRETER, VARIABLE, Gpu
from tests.kernels.device import DEVICE

HERE: Final = Gpu(INTERPRETER, (9, 0), version("triton"))
"""The interpreter, which stands in for a GPU."""

without_gpu = pytest.mark.skipif(DEVICE == "cuda", reason="the interpreter stands in for a GPU")


@pytest.fixture
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The user's cache, empty, and read."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(VARIABLE)
    tuning.forget()
    yield tmp_path
    tuning.forget()
