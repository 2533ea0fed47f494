"""The docstring of a method's file: fixed headings, read without importing anything."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from policyquant import Inventory, load_policy, resolve
from policyquant.methods.documentation import HEADINGS, documentation, read_documentation, source_of
from policyquant.methods.registry import BUILT_IN
from policyquant.policy.methods import METHODS

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "tests" / "data" / "models"


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_file_of_a_method_says_all_that_is_asked_of_it(name: str) -> None:
    said = documentation(name)
    assert said is not None
    assert said.summary.startswith(f"Method `{name}`: ")
    assert tuple(said.sections) == HEADINGS
    assert said.missing == []


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_headings_of_a_method_stand_in_their_order(name: str) -> None:
    path = source_of(BUILT_IN[name])
    assert path is not None
    text = ast.get_docstring(ast.parse(path.read_bytes())) or ""
    places = [text.index(f"\n{heading}\n{'-' * len(heading)}\n") for heading in HEADINGS]
    assert places == sorted(places)


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_example_of_a_method_is_a_policy_that_uses_it_and_fits_a_model(name: str, tmp_path: Path) -> None:
    said = documentation(name)
    assert said is not None
    policy = tmp_path / "policy.yaml"
    policy.write_text(said.sections["Example"])
    plan = resolve(load_policy(policy), Inventory.open(MODELS / "Meta-Llama-3-8B.json.gz"))
    assert [str(finding) for finding in plan.findings if finding.level != "note"] == []
    assert name in {row.scheme.method for row in plan.rows if row.decided_by == "rule"}


def test_a_method_that_only_plans_has_no_file() -> None:
    for name in METHODS:
        assert (documentation(name) is None) == (name not in BUILT_IN)
    assert documentation("no such method") is None


@pytest.mark.parametrize(
    ("docstring", "summary", "sections"),
    [
        ("Short.", "Short.", {}),
        ("Over\ntwo lines.\n\nAnd more.", "Over two lines.", {}),
        ("One.\n\nNumerics\n--------\ny = x\n\n    y\n\nz", "One.", {"Numerics": "y = x\n\n    y\n\nz"}),
        ("One.\n\nExample\n-------\n    a: b\n", "One.", {"Example": "    a: b"}),
        ("One.\n\nNumerics\n--------\n\n\nWhat it does\n------------\nIt.", "One.", {"What it does": "It."}),
        ("One.\n\nHistory\n-------\nOld.\n\nNumerics\n--------\nx", "One.", {"Numerics": "x"}),
        ("One.\n\nNumerics\n~~~~~~~~\nx", "One.", {}),
    ],
    ids=["summary", "two lines", "section", "indented", "empty section", "other heading", "other underline"],
)
def test_sections_are_told_by_underlined_headings(
    tmp_path: Path, docstring: str, summary: str, sections: dict[str, str]
) -> None:
    file = tmp_path / "method.py"
    file.write_text(f'"""{docstring}"""\nraise RuntimeError("it is not run")\n')
    said = read_documentation(file)
    assert (said.summary, said.sections) == (summary, sections)
    assert said.missing == [heading for heading in HEADINGS if heading not in sections]


@pytest.mark.parametrize("text", ["", "x = 1", "def (", "\0", "# coding: no-such-coding\n"])
def test_a_file_that_says_nothing_is_no_error(tmp_path: Path, text: str) -> None:
    file = tmp_path / "method.py"
    file.write_text(text)
    assert read_documentation(file).missing == list(HEADINGS)


def test_a_file_that_is_not_there_says_nothing(tmp_path: Path) -> None:
    assert read_documentation(tmp_path / "method.py").missing == list(HEADINGS)
    assert read_documentation(None).missing == list(HEADINGS)


@pytest.mark.parametrize("module", ["sys", "no_such_module", "policyquant.no_such_module", "__main__"])
def test_a_module_without_a_file_of_its_own_is_told_apart(module: str) -> None:
    path = source_of(module)
    assert path is None or (module == "__main__" and path.is_file())


def test_a_package_is_its_init_file() -> None:
    assert source_of("policyquant.methods") == ROOT / "policyquant" / "methods" / "__init__.py"


def test_reading_what_methods_say_loads_no_torch() -> None:
    program = (
        "import sys; from policyquant.methods.documentation import documentation\n"
        f"for name in {list(BUILT_IN)!r}: assert not documentation(name).missing\n"
        "assert 'torch' not in sys.modules"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert finished.returncode == 0, finished.stderr
