"""What a benchmark hands back, and how it is printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from benchmarks.timing import Timing


@dataclass(frozen=True, slots=True)
class Bar:
    """Something to be reached."""

    what: str
    value: float
    direction: Literal["at most", "at least"]
    limit: float
    unit: str = "×"

    @property
    def reached(self) -> bool:
        """Whether it is."""
        return self.value <= self.limit if self.direction == "at most" else self.value >= self.limit

    def __str__(self) -> str:
        verdict = "reached" if self.reached else "MISSED"
        space = "" if self.unit == "×" else " "
        return (
            f"{verdict}: {self.what}: {self.value:,.3g}{space}{self.unit},"
            f" {self.direction} {self.limit:,.4g}{space}{self.unit}"
        )


@dataclass(slots=True)
class Outcome:
    """Tables and bars of one benchmark."""

    tables: list[str] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Plain text: the first column to the left, numbers to the right."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    text = [title]
    for line in lines:
        first, *rest = (
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        text.append("  " + "  ".join([first, *rest]).rstrip())
    return "\n".join(text)


def times(title: str, names: Sequence[str], timings: Sequence[Timing]) -> str:
    """A table of contenders. The last of them is what the others are compared with."""
    reference = timings[-1].minimum
    rows = [
        (name, milliseconds(timing.minimum), milliseconds(timing.median), f"{timing.minimum / reference:,.4g}×")
        for name, timing in zip(names, timings, strict=True)
    ]
    return table(title, ("", "minimum", "median", "ratio of minima"), rows)


def milliseconds(seconds: float) -> str:
    """`12.3 ms`."""
    value = seconds * 1000
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def mebibytes(size: float) -> str:
    """`12.3 MiB`."""
    return f"{size / 2**20:,.1f} MiB"
