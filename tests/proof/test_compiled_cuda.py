"""The CUDA library compiles to the machine code that is expected, and is built without a GPU and a torch for one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from policyquant.kernels.cuda import build
from proof.cuda_compile import Library
from proof.cuda_rows import ARCHITECTURES
from tests.proof.compiled import ROOT, proven


def _has_nvcc() -> bool:
    try:
        build.find_nvcc()
    except build.BuildError:
        return False
    return True


pytestmark = pytest.mark.skipif(not _has_nvcc(), reason="needs nvcc, of the CUDA toolkit")

LOADED = """
import json, torch
from policyquant.kernels import dispatch, ops
from policyquant.kernels.cuda import library
from policyquant.kernels.machine import installed
operators = library.load()
names = sorted(name for name, every in dispatch.operators().items() if any(each.name == "cuda" for each in every))
schemas = {name: str(getattr(operators, name).default._schema) for name in names}
x, out = torch.ones(2, 32), torch.empty(2, 32, dtype=torch.float8_e4m3fn)
try:
    operators.static_scaled_fp8_quant(x, torch.ones(1), out=out)
except NotImplementedError as error:
    refused = str(error)
print(json.dumps({"schemas": schemas, "refused": refused}))
"""


def test_the_machine_code_of_the_quantizers_is_as_expected(tmp_path: Path) -> None:
    rows = proven(tmp_path, "--cuda", "quantize", "group_quantize", "--architectures", "90")
    measured = {row["operator"]: row for row in rows if row["operator"]}
    assert measured.keys() >= {"static_scaled_fp8_quant", "per_token_scaled_fp8_quant", "group_fp8_quant"}
    assert all(row["limit"] == "dram" for row in measured.values())


def _python(cache: Path, *arguments: str) -> str:
    environment: Mapping[str, str] = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_library_of_other_sources_is_refused(tmp_path: Path) -> None:
    with pytest.raises(build.BuildError, match=r"other\.so is not built of the sources that are there"):
        Library(tmp_path / "other.so")


COMMAND = ("-m", "policyquant", "kernels")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's cache in which the library is built: minutes of compiling, for all that is asked of it."""
    path: Path = tmp_path_factory.mktemp("cache")
    assert _python(path, *COMMAND, "build").startswith("built ")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_machine_code_of_every_kernel_is_as_expected(architecture: int, cache: Path, tmp_path: Path) -> None:
    (built,) = cache.rglob("*.so")
    rows = proven(tmp_path, "--cuda", "--library", str(built), "--architectures", str(architecture))
    assert {row["family"] for row in rows} == {path.stem for path in build.library.sources()}


@pytest.mark.slow
def test_the_library_is_built_and_loads_where_there_is_no_gpu(cache: Path) -> None:
    assert "is built already" in _python(cache, *COMMAND, "build")
    found = json.loads(_python(cache, "-c", LOADED))
    assert found["schemas"]
    assert all(text.startswith(f"policyquant_cuda::{name}(") for name, text in found["schemas"].items())
    assert "Could not run 'policyquant_cuda::static_scaled_fp8_quant' with arguments from the 'CPU'" in found["refused"]
    report = json.loads(_python(cache, *COMMAND, "--capability", "9.0", "--json", "--quiet"))
    runs = {row["operator"]: row["runs"] for row in report["operators"]}
    assert all("cuda" in runs[name] for name in found["schemas"])
