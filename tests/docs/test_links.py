"""Links between pages lead somewhere."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT, page_names, without_blocks

PAGES = (*page_names(), "CONTRIBUTING.md", "CHANGELOG.md")
LINKS = [
    pytest.param(page, target, id=f"{page}→{target}")
    for page in PAGES
    for target in dict.fromkeys(re.findall(r"\]\(([^)\s]+)\)", without_blocks(page)))
    if not target.startswith(("http://", "https://"))
]


def anchors(page: str) -> set[str]:
    """What can stand behind `#`: marks, and headings as GitHub spells them."""
    text = without_blocks(page)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a id="([\w-]+)">', text))


@pytest.mark.parametrize(("page", "target"), LINKS)
def test_link_leads_to_a_file_and_a_heading(page: str, target: str) -> None:
    path, _, anchor = target.partition("#")
    file = ((ROOT / page).parent / path).resolve() if path else ROOT / page
    assert file.exists(), f"{page} links to {target}"
    if anchor:
        assert anchor in anchors(file.relative_to(ROOT).as_posix()), f"{page} links to {target}"


def test_every_page_of_docs_is_linked_from_the_readme() -> None:
    linked = set(re.findall(r"\]\((docs/[\w-]+\.md)", without_blocks("README.md")))
    assert linked == {page for page in page_names() if page.startswith("docs/")}


@pytest.mark.parametrize("page", PAGES)
def test_prose_lines_are_at_most_120_characters(page: str) -> None:
    long = [line for line in without_blocks(page).splitlines() if len(line) > 120 and not line.startswith("|")]
    assert not long
