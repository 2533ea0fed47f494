"""What the file of a method says about it, read from its module's docstring without importing it.

A method is one file whose docstring has fixed headings. The same text is `policyquant methods NAME` and the page of
methods in the documentation, so it is told without loading torch: files are found by the registry's table, or by the
entry point of the package that brings the method, and read with `ast`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from policyquant.methods.registry import BUILT_IN
from policyquant.policy.methods import entry_points

HEADINGS: Final = (
    "What it does",
    "When to use it",
    "Numerics",
    "Shapes and alignment",
    "What runs it",
    "Example",
)
"""What the docstring of a method's file tells, in this order; each heading is underlined with hyphens."""

_HEADING: Final = re.compile(r"^(?P<title>\S.*)\n-{3,}$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Documentation:
    """What the docstring of a method's file says."""

    summary: str
    """The first paragraph, on one line; empty if there is none."""
    sections: Mapping[str, str]
    """Heading → its text, for the headings of `HEADINGS` that are there, in that order."""

    @property
    def missing(self) -> list[str]:
        """The headings that are not there, or have nothing below them."""
        return [heading for heading in HEADINGS if heading not in self.sections]


def documentation(name: str) -> Documentation | None:
    """What the file of a method says; None for a name that no method which runs here has.

    A file that cannot be found or read says nothing: all of its headings are missing.
    """
    if name in BUILT_IN:
        return read_documentation(source_of(BUILT_IN[name]))
    if name in entry_points():
        return read_documentation(source_of(entry_points()[name].value.partition(":")[0].strip()))
    return None


def read_documentation(path: Path | None) -> Documentation:
    """What a Python file says in its docstring; it is not run."""
    try:
        text = None if path is None else ast.get_docstring(ast.parse(path.read_bytes()))
    except (OSError, SyntaxError, ValueError):  # Whoever imports it will be told.
        text = None
    if text is None:
        return Documentation("", {})
    summary, *rest = _HEADING.split(text)
    found = {title: body.strip("\n").rstrip() for title, body in zip(rest[::2], rest[1::2], strict=True)}
    return Documentation(
        " ".join(summary.partition("\n\n")[0].split()),
        {heading: found[heading] for heading in HEADINGS if found.get(heading)},
    )


def source_of(module: str) -> Path | None:
    """The file of a module, found without importing it or the packages that it is in; None if there is none."""
    top, *inner = module.split(".")
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):  # A module that was imported, and does not say from where.
        return None
    if spec is None:
        return None
    if not inner:
        return Path(spec.origin) if spec.has_location and spec.origin is not None else None
    for location in spec.submodule_search_locations or ():
        base = Path(location, *inner)
        for file in (base / "__init__.py", base.with_name(f"{base.name}.py")):
            if file.is_file():
                return file
    return None
