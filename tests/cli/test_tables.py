"""Tables and numbers as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyquant.cli.sizes_text import bytes_text, count_text, parameters_text, shape_text, share_text
from policyquant.cli.tables import Column, Table, display_width, print_table, wrapped
from tests.cli.command import MIXTRAL, process

COLUMNS = (Column("name", code=True), Column("count", right=True), Column("note"))


def test_columns_are_aligned_and_lines_end_without_spaces(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(Table(COLUMNS, [("a", "1", ""), ("model.embed", "1,000", "x")]))
    assert capsys.readouterr().out.splitlines() == [
        "name         count  note",
        "a                1",
        "model.embed  1,000  x",
    ]


def test_wide_characters_are_counted_as_two_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(Table(COLUMNS, [("層.重み", "1", "x"), ("layer", "1", "y")]))
    lines = capsys.readouterr().out.splitlines()
    assert display_width("層.重み") == 7
    assert [line.rstrip("xy") for line in lines[1:]] == ["層.重み      1  ", "layer        1  "]


def test_markdown_keeps_its_columns_whatever_a_cell_holds(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(Table(COLUMNS, [("re:(a|b)`*", "1", "*a* | <b>")]), "markdown")
    assert capsys.readouterr().out.splitlines()[2] == "| `` re:(a\\|b)`* `` | 1 | \\*a\\* \\| \\<b> |"


def test_columns_without_anything_are_left_out() -> None:
    table = Table(COLUMNS, [("a", "", "x"), ("b", "", "")]).without_empty_columns()
    assert [column.title for column in table.columns] == ["name", "note"]
    assert table.rows == [("a", "x"), ("b", "")]


@given(st.lists(st.tuples(st.text(), st.text(), st.text()), max_size=5))
def test_every_row_is_one_line(rows: list[tuple[str, str, str]]) -> None:
    import contextlib
    import io

    for form in ("table", "markdown"):
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            print_table(Table(COLUMNS, rows), form)  # type: ignore[arg-type]
        assert len(shown.getvalue().split("\n")) == len(rows) + (2 if form == "table" else 3)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.00 KiB"),
        (10 * 1024, "10.0 KiB"),
        (1023 * 1024, "1.00 MiB"),
        (93_405_585_408, "87.0 GiB"),
        (688_574_839_360, "641 GiB"),
        (2**64, "16.0 EiB"),
        (2**80, "1048576 EiB"),
        (None, "unknown"),
    ],
)
def test_bytes(size: int | None, text: str) -> None:
    assert bytes_text(size) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (999, "999"), (124_439_808, "124M"), (46_702_792_704, "46.7B"), (1_026_000_000_000, "1.03T")],
)
def test_parameters(count: int, text: str) -> None:
    assert parameters_text(count) == text


def test_counts_shapes_and_shares() -> None:
    assert (count_text(1, "layer"), count_text(1059, "layer")) == ("1 layer", "1,059 layers")
    assert (shape_text((4, 8)), shape_text(()), shape_text(None)) == ("4x8", "", "?")
    assert (share_text(1, 8), share_text(None, 8), share_text(0, 0)) == ("12.5 %", "", "")


def test_rich_is_not_loaded_for_a_pipe() -> None:
    # It takes a fifth of the whole command's time.
    shown = process("inspect", MIXTRAL, "--policy", "fp8-kv", environment={"PYTHONPROFILEIMPORTTIME": "1"})
    loaded = {line.rpartition("|")[2].strip() for line in shown.stderr.splitlines()}
    assert "argparse" in loaded
    assert not {"rich", "rich.table", "jsonschema"} & loaded


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("decoder.*.moe", 20, ["decoder.*.moe"]),
        ("decoder.*.moe.experts", 14, ["decoder.*.moe.", "experts"]),
        ("a decoder.*.moe b", 14, ["a", "decoder.*.moe", "b"]),
        ("policies/experts.yaml:3", 16, ["policies/", "experts.yaml:3"]),
        ("fp8 per channel", 12, ["fp8 per", "channel"]),
        ("gate_up_proj", 4, ["gate_up_proj"]),
        ("", 4, [""]),
    ],
)
def test_cells_are_broken_at_dots_and_spaces_only(text: str, width: int, lines: list[str]) -> None:
    assert wrapped(text, width) == lines
