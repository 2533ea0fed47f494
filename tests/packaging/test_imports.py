"""What may import what, and what stays unloaded until it is needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

HEAVY = frozenset({"numpy", "safetensors", "torch", "transformers", "triton"})
"""Never loaded by the core."""

WHEN_NEEDED = frozenset({"jsonschema", "re2", "rich", "yaml"})
"""The core's own dependencies, each loaded only by what uses it."""

# Areas of the package, and what else of the package each may import. What a policy means, what a model has and what
# follows from both is decided without knowledge of anything that acts on the decision.
LEAVES = frozenset({"collector", "errors", "extras", "findings", "output_file", "version"})
MAY_IMPORT = {
    "collector": frozenset(),
    "errors": frozenset(),
    "extras": frozenset({"errors"}),
    "findings": frozenset(),
    "output_file": frozenset({"errors"}),
    "version": frozenset(),
    "schemas": frozenset(),
    "policies": frozenset(),
    "kernels": frozenset(),
    "policy": LEAVES | {"schemas", "policies", "inventory.kinds"},
    "inventory": LEAVES,
    "plan": LEAVES | {"schemas", "policy", "inventory"},
    "quantized_tensor": frozenset({"errors", "kernels"}),
    "checkpoint": LEAVES | {"inventory"},
    "methods": LEAVES | {"policy", "inventory.kinds", "kernels", "quantized_tensor", "checkpoint"},
    "layers": LEAVES | {"policy", "kernels", "quantized_tensor", "checkpoint", "methods"},
    "models": LEAVES | {"policy", "kernels", "quantized_tensor", "checkpoint", "methods", "layers"},
    "building": LEAVES
    | {"policy", "inventory", "plan", "kernels", "quantized_tensor", "checkpoint", "methods", "layers", "models"},
}

COMPUTING = frozenset({"kernels", "quantized_tensor", "checkpoint", "methods", "layers", "models", "building"})
"""Areas that hold tensors, and load torch to do so."""

TOP_LEVEL_AREAS = ("kernels", "policies", "schemas")
"""Directories at the top of the repository that are installed inside `policyquant`."""


def sources(area: str) -> list[Path]:
    place = ROOT / area if area in TOP_LEVEL_AREAS else ROOT / "policyquant" / area
    return sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]


def imported_modules(source: str) -> Iterator[tuple[int, str]]:
    """Line and full name of every module that `source` imports, at any depth; `from a import b` gives `a.b`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def forbidden_imports(source: str, area: str) -> list[tuple[int, str]]:
    """Imports in `source`, a file of `area`, that lead to an area it may not know or to a package it may not load."""
    allowed = MAY_IMPORT[area] | {area}
    found = []
    for line, module in imported_modules(source):
        package, _, inside = module.partition(".")
        if package == "policyquant":
            if not any(inside == name or inside.startswith(f"{name}.") for name in allowed):
                found.append((line, module))
        elif package in HEAVY and area not in COMPUTING:
            found.append((line, module))
    return found


@pytest.mark.parametrize("area", MAY_IMPORT)
def test_an_area_imports_only_what_lies_above_it(area: str) -> None:
    files = sources(area)
    assert files, f"{area} has no source files"
    found = {
        f"{file.relative_to(ROOT)}:{line}": module
        for file in files
        for line, module in forbidden_imports(file.read_text(encoding="utf-8"), area)
    }
    assert not found


@pytest.mark.parametrize(
    ("area", "source"),
    [
        ("policy", "from policyquant.cli.main import main"),
        ("policy", "import policyquant.inventory.layers"),
        ("policy", "from policyquant import load_policy"),
        ("policy", "def f():\n    import torch.nn"),
        ("inventory", "from policyquant.policy import policy"),
        ("inventory", "if TYPE_CHECKING:\n    from numpy import ndarray"),
        ("plan", "from policyquant.formats.awq import read"),
        ("kernels", "from policyquant.errors import PolicyQuantError"),
    ],
)
def test_a_forbidden_import_is_seen(area: str, source: str) -> None:
    assert forbidden_imports(source, area)


@pytest.mark.parametrize(
    ("area", "source"),
    [
        ("policy", "from policyquant.inventory.kinds import Kind"),
        ("policy", "from policyquant.policy.scheme import Fields\nimport yaml"),
        ("plan", "from policyquant.inventory.layers import LayerSet"),
        ("kernels", "import torch\nfrom policyquant.kernels import ops"),
    ],
)
def test_an_allowed_import_is_let_through(area: str, source: str) -> None:
    assert not forbidden_imports(source, area)


def loaded_by(statements: str) -> set[str]:
    """Top-level packages that a fresh interpreter has loaded after `statements`, beyond those it starts with."""
    program = (
        f"import sys\nbefore = set(sys.modules)\n{statements}\n"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert finished.returncode == 0, finished.stderr
    return set(finished.stdout.split())


def test_importing_the_package_loads_none_of_its_dependencies() -> None:
    loaded = loaded_by("import policyquant")
    assert "policyquant" in loaded
    assert not loaded & (HEAVY | WHEN_NEEDED)


def test_the_public_names_load_none_of_the_heavy_packages() -> None:
    loaded = loaded_by("from policyquant import Inventory, load_policy, resolve")
    assert "policyquant" in loaded
    assert not loaded & (HEAVY | {"jsonschema", "rich"})


@pytest.mark.parametrize(
    ("statement", "who"),
    [
        ("policyquant.build(lambda: None, policy={})", "policyquant.build"),
        ("from policyquant import load_weights", "policyquant.load_weights"),
        ("from policyquant import PlanConfig", "policyquant.PlanConfig"),
        ("import policyquant.layers.linear", "policyquant.layers"),
        ("from policyquant.models.families import model_factory", "policyquant.models"),
        ("import policyquant.checkpoint.reader", "policyquant.checkpoint"),
        (
            "from policyquant.methods.registry import method_class; method_class('fp8')",
            "the code of method 'fp8'",
        ),
    ],
    ids=lambda value: value,
)
def test_what_needs_torch_says_how_to_install_it(statement: str, who: str) -> None:
    program = (
        "import sys\nsys.modules['torch'] = None\n"  # As if it were not installed.
        "import policyquant\n"
        "try:\n"
        f"    {statement}\n"
        "except policyquant.PolicyQuantError as error:\n"
        "    assert isinstance(error, ImportError)\n"
        "    print(error)"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert finished.stdout == f"{who} needs torch, which is not installed: pip install 'policyquant[torch]'\n"


def test_a_policy_is_resolved_without_torch() -> None:
    model = ROOT / "tests" / "data" / "models" / "Mixtral-8x7B-v0.1.json.gz"
    program = (
        "import sys\nsys.modules['torch'] = None\n"
        "from policyquant import Inventory, load_policy, resolve\n"
        f"print(len(resolve(load_policy('fp8-dynamic'), Inventory.open({str(model)!r}))))"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (finished.returncode, finished.stderr) == (0, "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],
        ["inspect", "{model}", "--policy", "fp8-dynamic"],
        ["inspect", "{model}", "--policy", "fp8-dynamic", "--json"],
        ["explain", "{model}", "model.layers.0.self_attn.q_proj", "--policy", "fp8-dynamic"],
        ["match", "*.o_proj", "{model}"],
        ["methods"],
        ["methods", "fp8"],
    ],
    ids=" ".join,
)
def test_showing_a_plan_loads_none_of_the_heavy_packages(arguments: list[str]) -> None:
    model = ROOT / "tests" / "data" / "models" / "Mixtral-8x7B-v0.1.json.gz"
    command = ["policyquant", *(argument.format(model=model) for argument in arguments)]
    loaded = loaded_by(
        "import contextlib, io, runpy\n"
        f"sys.argv = {command!r}\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        "    try:\n"
        "        runpy.run_module('policyquant', run_name='__main__')\n"
        "    except SystemExit as exit:\n"
        "        assert not exit.code, exit.code"
    )
    assert "policyquant" in loaded
    assert not loaded & (HEAVY | {"jsonschema"})
