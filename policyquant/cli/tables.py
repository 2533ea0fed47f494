"""Tables: one model, drawn plainly into pipes, with colours on terminals, or as Markdown.

Into a pipe nothing is cut or folded, so that what another program reads is whole. On a terminal long cells are folded
to its width, but never the first, which holds the name: where that leaves too little for the rest, the name has a line
of its own and the rest stands below it.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple

from policyquant.cli import output, terminal
from policyquant.cli.output import one_line
from policyquant.cli.terminal import Style

Format = Literal["table", "markdown"]


class Column(NamedTuple):
    """How one column looks."""

    title: str
    right: bool = False
    """Whether it is set to the right, as numbers are."""
    fold: bool = False
    """Whether its text may go on in the next line where the terminal is narrow."""
    code: bool = False
    """Whether it holds names or patterns, which Markdown must leave alone."""
    style: Style = ""


class Table(NamedTuple):
    """Columns and rows of text, one cell for each column."""

    columns: Sequence[Column]
    rows: Sequence[tuple[str, ...]]

    def without_empty_columns(self) -> Table:
        """The same without columns in which no row says anything."""
        keep = [i for i in range(len(self.columns)) if any(row[i] for row in self.rows)]
        return Table([self.columns[i] for i in keep], [tuple(row[i] for i in keep) for row in self.rows])


_NARROWEST: Final = 12
"""Columns that may be folded are not folded to less than this."""

_PIECES: Final = re.compile(r"(?:[^\s.,/]|\.(?=(?:ya?ml|json)\b))+[\s.,/]*|[\s.,/]+")
"""What stays in one line: a word, or a part of a dotted name with its dot; a file's suffix is no such part."""

_WORDS: Final = re.compile(r"\S+\s*|\s+")

_INDENT: Final = "  "
"""Before what stands below a name."""

_GAP: Final = 2
"""Spaces between columns."""

_AS_WIDE_AS_NEEDED: Final = 10_000


def print_table(table: Table, form: Format = "table") -> None:
    """Print a table to standard output."""
    table = Table(table.columns, [tuple(map(one_line, row)) for row in table.rows])
    if form == "markdown":
        output.write_styled("".join(_markdown(table)))
        return
    width = terminal.width()
    if width is not None and width < _least_width(table):
        output.write_styled("".join(_stacked(table, width)))
    elif width is not None or terminal.has_colours(sys.stdout):
        output.write_styled(_drawn(table, width or _AS_WIDE_AS_NEEDED))
    else:
        output.write_styled("".join(_plain(table)))


def _plain(table: Table) -> Iterator[str]:
    widths = _widths(table)
    for row in (tuple(column.title for column in table.columns), *table.rows):
        cells = (
            _padded(cell, width, column.right) for cell, width, column in zip(row, widths, table.columns, strict=True)
        )
        yield (" " * _GAP).join(cells).rstrip() + "\n"


def _markdown(table: Table) -> Iterator[str]:
    yield "| " + " | ".join(column.title or " " for column in table.columns) + " |\n"
    yield "|" + "|".join("---:" if column.right else "---" for column in table.columns) + "|\n"
    for row in table.rows:
        cells = (
            _markdown_code(cell) if column.code and cell else _markdown_text(cell)
            for cell, column in zip(row, table.columns, strict=True)
        )
        yield "| " + " | ".join(cells) + " |\n"


def _markdown_code(text: str) -> str:
    fence = "``" if "`" in text else "`"
    space = " " if "`" in text else ""
    return f"{fence}{space}{text}{space}{fence}".replace("|", "\\|")


def _markdown_text(text: str) -> str:
    for character in "\\`*_<|":
        text = text.replace(character, f"\\{character}")
    return text


def _stacked(table: Table, width: int) -> Iterator[str]:
    """Each row as its first cell and, indented, the others: in columns if these fit, else one after the other."""
    columns = table.columns[1:]
    widths = _widths(table)[1:]
    aligned = sum(widths) + _GAP * len(widths) <= width
    if aligned:
        titles = (_padded(c.title, w, c.right) for c, w in zip(columns, widths, strict=True))
        head = (table.columns[0].title.strip(), f"{_INDENT}{(' ' * _GAP).join(titles)}".rstrip())
        yield from (terminal.paint(line, "bold", sys.stdout) + "\n" for line in head)
    for first, *others in table.rows:
        yield terminal.paint(first, "bold", sys.stdout) + "\n"
        if aligned:
            cells = (
                terminal.paint(_padded(cell, w, c.right), c.style if cell else "", sys.stdout)
                for cell, w, c in zip(others, widths, columns, strict=True)
            )
            yield f"{_INDENT}{(' ' * _GAP).join(cells)}".rstrip() + "\n"
        else:
            pieces = [f"{column.title} {cell}" for cell, column in zip(others, columns, strict=True) if cell]
            yield from (f"{_INDENT}{line}\n" for line in _filled(pieces, width - len(_INDENT)))


def _filled(pieces: Sequence[str], width: int) -> Iterator[str]:
    """Pieces in as few lines as they fit in, each whole; one that is longer than a line is left to the terminal."""
    line = ""
    for piece in pieces:
        longer = f"{line}{' ' * _GAP}{piece}" if line else piece
        if line and display_width(longer) > width:
            yield line
            longer = piece
        line = longer
    if line:
        yield line


def _drawn(table: Table, width: int) -> str:
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    colours = terminal.has_colours(sys.stdout)
    text = io.StringIO()
    console = Console(
        file=text,
        width=width,
        force_terminal=colours,
        color_system="standard" if colours else None,
        markup=False,
        highlight=False,
        emoji=False,
        legacy_windows=False,
    )
    lines = box.SIMPLE_HEAD if terminal.can_print("─") else None
    gap = _GAP if lines is None else _GAP - 1  # The lines' own divider is one space wide.
    widths = _shared_widths(table, width)
    drawn = RichTable(box=lines, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold", show_edge=False)
    for position, column in enumerate(table.columns):
        drawn.add_column(
            Text(column.title),
            justify="right" if column.right else "left",
            overflow="fold",
            no_wrap=True,
            width=widths[position],
            style=column.style,
        )
    for row in table.rows:
        drawn.add_row(*(Text("\n".join(wrapped(cell, room))) for cell, room in zip(row, widths, strict=True)))
    console.print(drawn)
    return "".join(line.rstrip() + "\n" for line in text.getvalue().splitlines())


def _least_width(table: Table) -> int:
    """The width below which a table would have to cut something."""
    return sum(_least_widths(table)) + _GAP * len(table.columns)


def _least_widths(table: Table) -> list[int]:
    """Of each column, such that no word of a cell, and no part of a dotted name, is broken."""
    least = []
    for position, (width, column) in enumerate(zip(_widths(table), table.columns, strict=True)):
        if column.fold and position:
            longest = max(
                display_width(piece.rstrip())
                for cell in (column.title, *(row[position] for row in table.rows))
                for piece in _PIECES.findall(cell) or [""]
            )
            width = min(width, max(longest, _NARROWEST))
        least.append(width)
    return least


def _shared_widths(table: Table, width: int) -> list[int]:
    """Widths of the columns on a line of this width: those that may be folded give way, the widest first."""
    widths, least = _widths(table), _least_widths(table)
    while sum(widths) + _GAP * len(widths) > width:
        widest = max(range(len(widths)), key=lambda i: widths[i] if widths[i] > least[i] else 0)
        if widths[widest] == least[widest]:
            break
        widths[widest] -= 1
    return widths


def wrapped(text: str, width: int) -> list[str]:
    """Lines of text, broken after spaces; a word that is longer than a line after dots, commas and slashes, and what is
    still longer not at all."""
    if display_width(text) <= width:
        return [text]
    lines = [""]
    for word in _WORDS.findall(text):
        for piece in [word] if display_width(word.rstrip()) <= width else _PIECES.findall(word):
            if lines[-1] and display_width((lines[-1] + piece).rstrip()) > width:
                lines.append("")
            lines[-1] += piece
    return [line.rstrip() for line in lines]


def _widths(table: Table) -> list[int]:
    return [
        max(display_width(column.title), *(display_width(row[i]) for row in table.rows), 0)
        for i, column in enumerate(table.columns)
    ]


def _padded(text: str, width: int, right: bool) -> str:
    space = " " * (width - display_width(text))
    return space + text if right else text + space


def display_width(text: str) -> int:
    """Columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )
