"""Tables of patterns whose last two columns, the namespace and what is reached, are computed.

A page marks one with `<!-- reaches: MODEL -->` in the line above it, or with `<!-- reaches -->` if the model stands in
the first column.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Final, NamedTuple

from policyquant.plan.matching import Matcher
from policyquant.plan.spans import unit_spans
from policyquant.plan.units import Unit, units_of
from policyquant.policy.patterns import Pattern
from tests.docs.pages import read
from tests.docs.running import inventory

_MARK: Final = re.compile(r"<!-- reaches(?:: (?P<model>\S+))? -->")
_CELL: Final = re.compile(r"(?<!\\)\|")
_SHOWN: Final = 3


class Row(NamedTuple):
    """One row of such a table, by its line number from 1."""

    line: int
    text: str
    wanted: str


def rows(page: str) -> Iterator[Row]:
    """The rows of a page's tables of patterns: as they are, and as they have to be."""
    model: str | None = None
    inside = 0
    for number, line in enumerate(read(page).splitlines(), 1):
        mark = _MARK.fullmatch(line)
        if mark is not None:
            model, inside = mark["model"], 1
        elif inside and line.startswith("|"):
            if inside > 2:  # Below the head and its rule.
                cells = [cell.strip() for cell in _CELL.split(line)[1:-1]]
                given = cells[:-2]
                yield Row(number, line, _row(given, model or given[0]))
            inside += 1
        else:
            inside = 0


def _row(given: list[str], model: str) -> str:
    pattern = given[-1].strip("`").replace("\\|", "|")
    return f"| {' | '.join([*given, *reach(model, pattern)])} |"


def reach(model: str, pattern: str) -> tuple[str, str]:
    """The namespace of a pattern in a model, and the layers that it reaches in a few words."""
    units, matcher = _matcher(model)
    match = matcher.match(Pattern.compile(pattern))
    if match.namespace is None:
        return "", "nothing"
    names: dict[str, None] = {}
    layers: set[tuple[int, int]] = set()
    for number, ranges in match.reach.items():
        unit = units[number]
        names.update(dict.fromkeys(unit_spans(unit, ranges)))
        for start, stop in unit.layer_ranges(ranges):
            layers.update((id(unit.layer), position) for position in range(start, stop))
    shown = ", ".join(f"`{name}`" for name in list(names)[:_SHOWN])
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return match.namespace, f"{len(layers)} layer{'s' if len(layers) > 1 else ''}: {shown}{more}"


@cache
def _matcher(model: str) -> tuple[list[Unit], Matcher]:
    units = units_of(inventory(model).sets)
    return units, Matcher(units)
