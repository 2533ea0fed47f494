"""Every block of code in the README and in docs/ does what the page says."""

from __future__ import annotations

import pytest

from tests.docs.pages import blocks, page_names
from tests.docs.running import PageRun, matches

CASES = [
    pytest.param(page, number, id=str(block)) for page in page_names() for number, block in enumerate(blocks(page))
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PageRun]:
    return {page: PageRun(page, tmp_path_factory.mktemp("page")) for page in page_names()}


@pytest.mark.parametrize(("page", "number"), CASES)
def test_block_does_what_the_page_says(runs: dict[str, PageRun], page: str, number: int) -> None:
    runs[page].check(number)


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a\nb\n", "a  \nb\n\n", True),
        ("a\nb\n", "a\nc\n", False),
        ("a\n...\nd\n", "a\nb\nc\nd\n", True),
        ("a\n...\n", "a\n", True),
        ("a\n", "a\nb\n", False),
        ("a...\n", "ab\n", False),
    ],
)
def test_comparison_of_output_is_strict_but_for_ellipses(expected: str, printed: str, same: bool) -> None:
    assert matches(expected, printed) is same
