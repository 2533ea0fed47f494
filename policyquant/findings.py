"""Findings: what inspection has to say about a policy on a model, collected rather than raised.

Each has a stable code, documented in `docs/findings.md` under the anchor of the same name.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Level = Literal["error", "warning", "note"]


class Finding(NamedTuple):
    """One observation. `layers` are checkpoint names; `rules` are written places (`file:line:column`)."""

    code: str
    level: Level
    message: str
    layers: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
