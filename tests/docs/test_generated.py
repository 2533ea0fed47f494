"""What pages say of the code in tables is what the code says."""

from __future__ import annotations

import re

import pytest

from policyquant.inventory.architectures.vocabulary import canonical_names, place
from tests.docs.generated import GENERATED
from tests.docs.pages import generated, page_names, read
from tests.docs.reach_tables import Row, rows

TABLES = [
    pytest.param(page, name, text, id=f"{page}:{name}") for page in page_names() for name, text in generated(page)
]
REACH_ROWS = [pytest.param(row, id=f"{page}:{row.line}") for page in page_names() for row in rows(page)]

REFRESH = "python -m tests.docs.refresh writes it"


@pytest.mark.parametrize(("page", "name", "text"), TABLES)
def test_generated_table_is_up_to_date(page: str, name: str, text: str) -> None:
    assert text == GENERATED[name](), f"{page}: the table {name!r} is stale; {REFRESH}"


def test_every_table_that_can_be_generated_is_on_a_page() -> None:
    assert {name for page in page_names() for name, _ in generated(page)} == set(GENERATED)


@pytest.mark.parametrize("row", REACH_ROWS)
def test_pattern_reaches_what_the_page_says(row: Row) -> None:
    assert row.text == row.wanted, REFRESH


def test_every_canonical_name_is_on_its_page_and_every_name_there_is_canonical() -> None:
    tables = dict(generated("docs/canonical-names.md"))
    on_page = {
        section: set(re.findall(r"^\| `([^`]+)` \|", tables[section], re.MULTILINE))
        for section in ("block", "prediction", "tower", "global")
    }
    in_code: dict[str, set[str]] = {section: set() for section in on_page}
    for name in canonical_names():
        where = place(name)
        in_block = where.prefix.count("#") > 0
        if not where.prefix:
            in_code["global"].add(where.relative)
        elif not in_block:
            in_code["tower"].add(where.relative)
        elif where.tower == "mtp" and place(f"decoder.#.{where.relative}").role is None:
            in_code["prediction"].add(where.relative)
        else:
            in_code["block"].add(where.relative)
    assert on_page == in_code


def test_first_parts_of_canonical_names_stand_in_the_picture_of_the_tree() -> None:
    picture = read("docs/canonical-names.md").partition("```text")[2].partition("```")[0]
    for first in (
        "embedding",
        "final_norm",
        "head",
        "projector",
        "decoder.N",
        "mtp.N",
        "encoder.N",
        "vision.N",
        "audio.N",
    ):
        assert first in picture
