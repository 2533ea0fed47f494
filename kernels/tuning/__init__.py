"""Tile configurations: data, one table a family of kernels, by architecture and class of shapes.

A table is `kernels/tuning/<family>.json`: {"sm_90": {"<shape class>": {"BLOCK_M": 128, …, "num_warps": 8}}}. Keys of a
configuration are arguments of the kernel and of the compiler. Nothing is measured when a kernel is first needed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent


@cache
def configuration(family: str, capability: tuple[int, int], shape_class: str) -> Mapping[str, Any]:
    """The configuration for a GPU: that of its architecture, or of the closest older one in the table.

    Raises:
        KeyError: the table has no architecture as old as this one, or not this class of shapes.
    """
    table = _table(family)
    wanted = capability[0] * 10 + capability[1]
    known = sorted((int(name.removeprefix("sm_")) for name in table), reverse=True)
    for number in known:
        classes: Mapping[str, Mapping[str, Any]] = table[f"sm_{number}"]
        if number <= wanted and shape_class in classes:
            return classes[shape_class]
    raise KeyError(f"{family}: no configuration of {shape_class!r} for compute capability {capability}")


@cache
def _table(family: str) -> Mapping[str, Any]:
    table: Mapping[str, Any] = json.loads((_HERE / f"{family}.json").read_text(encoding="utf-8"))
    return table
