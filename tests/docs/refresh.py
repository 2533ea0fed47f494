"""Writes into the pages what is computed: output of commands, generated parts, tables of patterns.

    python -m tests.docs.refresh

What already holds is left alone, so that an output that is cut short with `...` stays so. Read the difference before
it is kept: this makes the pages agree with the program, not the program right.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.docs.generated import GENERATED
from tests.docs.pages import ROOT, Block, blocks, generated, page_names, read
from tests.docs.reach_tables import rows
from tests.docs.running import PageRun, commands, matches, working_in


def refresh(page: str) -> None:
    """Bring one page up to date."""
    for name, text in generated(page):
        _replace(page, f"<!-- generated: {name} -->\n{text}", f"<!-- generated: {name} -->\n{GENERATED[name]()}")
    lines = read(page).splitlines()
    for row in rows(page):
        lines[row.line - 1] = row.wanted
    _write(page, "\n".join(lines) + "\n")
    with tempfile.TemporaryDirectory() as folder:
        run = PageRun(page, Path(folder))
        for number in range(len(blocks(page))):
            block = blocks(page)[number]  # Again for each: the one before may have been rewritten.
            with working_in(Path(folder)):
                if block.language == "console":
                    _refresh_console(page, run, block)
                else:
                    try:
                        run.run(block)
                    except BaseException as error:  # Whatever it is, the author wants to see it.
                        print(f"{block}: {error}")


def _refresh_console(page: str, run: PageRun, block: Block) -> None:
    pieces = []
    for command, expected in commands(block.text):
        try:
            printed = run.execute(command)
        except Exception as error:  # Likewise.
            print(f"{block}: $ {command}: {error!r}")
            return
        pieces.append(f"$ {command}\n")
        only = block.option("only")
        shown = _only(only, printed) if only else _tidy(printed)
        pieces.append(expected if matches(expected, printed) and not only else shown)
    _replace(page, f"\n{block.text}```", f"\n{''.join(pieces)}```")


def _only(code: str, printed: str) -> str:
    """The lines of one finding, `...` for all others."""
    lines: list[str] = []
    inside = False
    for line in _tidy(printed).splitlines():
        inside = f" {code}: " in line or (inside and line.startswith("    "))
        if inside:
            lines.append(line)
        elif lines[-1:] != ["..."]:
            lines.append("...")
    return "".join(f"{line}\n" for line in lines)


def _tidy(printed: str) -> str:
    return "".join(f"{line.rstrip()}\n" for line in printed.rstrip().splitlines())


def _replace(page: str, old: str, new: str) -> None:
    text = read(page)
    assert old in text
    _write(page, text.replace(old, new, 1))


def _write(page: str, text: str) -> None:
    if text != read(page):
        (ROOT / page).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for name in sys.argv[1:] or page_names():
        refresh(name)
