"""The documentation as data: pages, their fenced blocks, their tables that are generated from the code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^`\n]*)$")


@dataclass(frozen=True)
class Block:
    """A fenced block. What follows its language in the opening line tells how it is tested."""

    page: str
    line: int
    """Of its first line of text, from 1."""
    language: str
    flags: frozenset[str]
    options: tuple[tuple[str, str], ...]
    text: str

    def option(self, name: str) -> str | None:
        return dict(self.options).get(name)

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@cache
def page_names() -> tuple[str, ...]:
    """Every page of the documentation, relative to the root of the repository."""
    return ("README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md")))


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    return list(_blocks(page))


def _blocks(page: str) -> Iterator[Block]:
    opened: tuple[int, str] | None = None
    lines: list[str] = []
    for number, line in enumerate(read(page).splitlines(), 1):
        fence = _FENCE.match(line)
        if fence is None:
            lines.append(line)
        elif opened is None:
            assert fence["info"].strip(), f"{page}:{number}: a fenced block says its language"
            opened, lines = (number + 1, fence["info"]), []
        else:
            language, *words = opened[1].split()
            yield Block(
                page,
                opened[0],
                language,
                frozenset(word for word in words if "=" not in word),
                tuple((name, value) for name, _, value in (word.partition("=") for word in words if "=" in word)),
                "".join(f"{text}\n" for text in lines),
            )
            opened = None
    assert opened is None, f"{page}: the block at line {opened} is not closed"


def without_blocks(page: str) -> str:
    """The text of a page outside fenced blocks, with the same line numbers."""
    inside = False
    kept = []
    for line in read(page).splitlines():
        fence = _FENCE.match(line) is not None
        kept.append("" if inside or fence else line)
        inside ^= fence
    return "\n".join(kept)


_GENERATED = re.compile(r"<!-- generated: (?P<name>[\w-]+) -->\n(?P<text>.*?)<!-- end -->", re.DOTALL)


def generated(page: str) -> Iterator[tuple[str, str]]:
    """Name and text of each part of a page that is made from the code."""
    for match in _GENERATED.finditer(read(page)):
        yield match["name"], match["text"]
