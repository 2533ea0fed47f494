"""The rows of the table of speeds, one file a family of operators: `rows(tiny) -> list of Row`."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from benchmarks.gpu.row import Row


def families() -> list[str]:
    """The families that have rows."""
    return sorted(each.name for each in pkgutil.iter_modules(__path__))


def rows_of(family: str, *, tiny: bool) -> list[Row]:
    """A family's rows; tiny ones for a rehearsal."""
    made: list[Row] = import_module(f"benchmarks.gpu.rows.{family}").rows(tiny)
    return made
