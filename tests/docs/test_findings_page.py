"""docs/findings.md has a section for every finding, with an example that shows it."""

from __future__ import annotations

import re

import pytest

from policyquant.findings import Level
from tests.docs.generated import SECTION
from tests.docs.pages import ROOT, blocks, read

PAGE = "docs/findings.md"
IN_SOURCE = sorted(
    {
        code
        for file in (ROOT / "policyquant").rglob("*.py")
        for code in re.findall(r'"(PQ\d{3})"', file.read_text(encoding="utf-8"))
    }
)
SECTIONS = [match["code"] for match in SECTION.finditer(read(PAGE))]
LEVELS: dict[str, Level] = {"1": "error", "2": "warning", "3": "note"}


def section(code: str) -> str:
    return re.split(r"^## (?=PQ)", read(PAGE).partition(f"## {code}: ")[2], maxsplit=1, flags=re.MULTILINE)[0]


def test_codes_of_the_source_are_found() -> None:
    assert len(IN_SOURCE) > 30


def test_every_code_has_its_section_and_every_section_its_code() -> None:
    assert sorted(SECTIONS) == IN_SOURCE


def test_sections_stand_in_the_order_of_their_codes() -> None:
    assert sorted(SECTIONS) == SECTIONS


@pytest.mark.parametrize("code", SECTIONS)
def test_section_can_be_linked_to_by_its_code(code: str) -> None:
    assert f'<a id="{code.lower()}"></a>\n\n## {code}: ' in read(PAGE)


@pytest.mark.parametrize("code", SECTIONS)
def test_section_shows_an_example_that_prints_the_finding_at_its_level(code: str) -> None:
    """That the example prints what the page says is the business of test_code_blocks."""
    text = section(code)
    level = re.search(r"\*(Error|Warning|Note)\.\*", text)
    assert level is not None
    if code[2] in LEVELS:
        assert level[1].lower() == LEVELS[code[2]]
    examples = [block.text for block in blocks(PAGE) if block.text in text]
    shown = any(re.search(rf"^{level[1].lower()} {code}: ", example, re.MULTILINE) for example in examples)
    asserted = any(f'finding.code == "{code}"' in example for example in examples)
    assert shown or asserted


@pytest.mark.parametrize("code", SECTIONS)
def test_section_ends_with_what_to_do(code: str) -> None:
    last = section(code).partition('\n<a id="')[0].rstrip().split("\n\n")[-1]
    assert last.startswith("**What to do:** ")
