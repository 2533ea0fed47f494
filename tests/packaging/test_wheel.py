"""The wheel: what is in it, and that it works where nothing but it and its dependencies is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from email.parser import Parser
from pathlib import Path, PurePosixPath

import pytest

from policyquant.version import VERSION

ROOT = Path(__file__).parents[2]
INFORMATION = f"policyquant-{VERSION}.dist-info"
MODEL = ROOT / "tests" / "data" / "models" / "Mixtral-8x7B-v0.1.json.gz"

PACKAGED = {
    "policyquant": "policyquant",
    **{name: f"policyquant/{name}" for name in ("kernels", "policies", "schemas")},
}
"""Directory of the repository → where its files are in the wheel."""


def run(*command: str | Path, cwd: Path) -> str:
    finished = subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=cwd, check=False)
    assert finished.returncode == 0, f"{command}\n{finished.stdout}\n{finished.stderr}"
    return finished.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a source distribution of a copy of the tree, so that leftovers of other builds cannot get into it."""
    directory = tmp_path_factory.mktemp("wheel")
    anywhere = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__")

    def unwanted(place: str, names: list[str]) -> set[str]:
        top = {"build", "dist", "tests"} if Path(place) == ROOT else set()
        return anywhere(place, names) | top

    tree = shutil.copytree(ROOT, directory / "tree", ignore=unwanted)
    run(sys.executable, "-m", "build", "--outdir", directory / "dist", cwd=tree)
    (built,) = (directory / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def contents(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the executables of a new environment in which the wheel and its dependencies are."""
    directory = tmp_path_factory.mktemp("environment")
    venv.create(directory, with_pip=True)
    executables = directory / ("Scripts" if os.name == "nt" else "bin")
    run(executables / "python", "-m", "pip", "install", "--quiet", wheel, cwd=directory)
    return executables


@pytest.mark.parametrize("directory", PACKAGED)
def test_the_wheel_has_every_source_and_data_file(contents: set[str], directory: str) -> None:
    expected = {
        f"{PACKAGED[directory]}/{file.relative_to(ROOT / directory).as_posix()}"
        for pattern in ("*.py", "*.json", "*.yaml", "py.typed")
        for file in (ROOT / directory).rglob(pattern)
    }
    assert expected
    assert not expected - contents


def test_the_wheel_has_nothing_else(contents: set[str]) -> None:
    top = {PurePosixPath(name).parts[0] for name in contents}
    assert top == {"policyquant", INFORMATION}
    suffixes = {PurePosixPath(name).suffix for name in contents if name.startswith("policyquant/")}
    assert suffixes <= {".py", ".json", ".yaml", ".typed", ".cu", ".cuh"}


def test_the_wheel_carries_the_license_and_the_runtime_dependencies(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        license_text = archive.read(f"{INFORMATION}/licenses/LICENSE").decode()
        metadata = Parser().parsestr(archive.read(f"{INFORMATION}/METADATA").decode())
    assert license_text == (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert metadata["License-Expression"] == "Apache-2.0"
    needed = {line.partition(">")[0] for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line}
    assert needed == {"google-re2", "jsonschema", "pyyaml", "rich"}


def test_what_torch_and_safetensors_need_to_compute_and_write_comes_with_the_extra(wheel: Path) -> None:
    """Neither asks for numpy: safetensors cannot write a file without it, and torch warns in every run."""
    with zipfile.ZipFile(wheel) as archive:
        metadata = Parser().parsestr(archive.read(f"{INFORMATION}/METADATA").decode())
    wanted = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" in line]
    extras = {
        name: {line.partition(";")[0] for line in wanted if f'extra == "{name}"' in line} for name in ("torch", "run")
    }
    assert {line.partition(">")[0] for line in extras["torch"]} == {"numpy", "safetensors", "torch"}
    assert "policyquant[torch]" in extras["run"]


def test_the_command_tells_its_version(installed: Path, tmp_path: Path) -> None:
    assert run(installed / "policyquant", "--version", cwd=tmp_path).split() == ["policyquant", VERSION]


def test_the_package_runs_as_a_module(installed: Path, tmp_path: Path) -> None:
    assert run(installed / "python", "-m", "policyquant", "--version", cwd=tmp_path).split() == ["policyquant", VERSION]


def test_a_real_layout_is_inspected(installed: Path, tmp_path: Path) -> None:
    printed = run(installed / "policyquant", "inspect", MODEL, "--policy", "fp8-experts", cwd=tmp_path)
    assert "block_sparse_moe.experts" in printed
    assert "fp8" in printed


@pytest.mark.parametrize("module", ["kernels", "schemas", "policies", "tests", "benchmarks", "docs"])
def test_no_other_top_level_module_is_installed(installed: Path, tmp_path: Path, module: str) -> None:
    search = f"import importlib.util; print(importlib.util.find_spec({module!r}))"
    assert run(installed / "python", "-I", "-c", search, cwd=tmp_path).strip() == "None"
