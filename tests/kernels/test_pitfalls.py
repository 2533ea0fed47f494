"""The table of pitfalls: each has a test that exists, or a reason why it cannot be met."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from policyquant.kernels.cuda import build
from tests.kernels.pitfalls import PITFALLS, Pitfall

TESTS = Path(__file__).parents[1]
KERNELS = TESTS.parent / "kernels"


@cache
def functions(file: str) -> dict[str, str]:
    """Tests of a file → their source with what decorates them, and what marks the whole file."""
    text = (TESTS / file).read_text(encoding="utf-8")
    tree = ast.parse(text)
    marks = re.findall(r"^pytestmark = .*$", text, re.MULTILINE)
    found = {}
    for each in tree.body:
        if isinstance(each, ast.FunctionDef) and each.name.startswith("test_"):
            first = min([each.lineno, *(decorator.lineno for decorator in each.decorator_list)])
            found[each.name] = "\n".join([*marks, *text.splitlines()[first - 1 : each.end_lineno]])
    return found


@pytest.mark.parametrize("pitfall", PITFALLS, ids=lambda pitfall: pitfall.what)
def test_its_tests_exist(pitfall: Pitfall) -> None:
    for test in pitfall.tests:
        file, _, name = test.partition("::")
        assert name in functions(file), test
    assert pitfall.tests or pitfall.way == "not here"


@pytest.mark.parametrize(
    "pitfall", [each for each in PITFALLS if each.way in ("GPU", "not here")], ids=lambda pitfall: pitfall.what
)
def test_what_is_not_shown_here_has_a_reason(pitfall: Pitfall) -> None:
    assert pitfall.reason
    if pitfall.way == "GPU":
        on_gpu = [test for test in pitfall.tests if "mark.gpu" in functions(test.split("::")[0])[test.split("::")[1]]]
        assert on_gpu, "one of its tests runs on a GPU"


def test_none_stands_twice() -> None:
    assert len({each.what for each in PITFALLS}) == len(PITFALLS) == 39


def test_no_kernel_asks_for_what_is_not_here() -> None:
    for path in (KERNELS / "triton").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "warp_specialize" not in text, path
        assert not re.search(r"\w*desc\w*\.store\(|store_tensor_descriptor", text), path


def test_the_cuda_library_holds_no_ptx() -> None:
    """Code for each architecture is named by sm_; compute_ would name PTX, which a driver compiles or refuses."""
    for flag in build.codes(build.ARCHITECTURES):
        assert re.fullmatch(r"-gencode=arch=compute_(\d+),code=sm_\1", flag)
