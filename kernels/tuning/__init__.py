"""Tile configurations: data, one table a family of kernels, by architecture and class of shapes.

A table is `kernels/tuning/<family>.json`: {"sm_90": {"<shape class>": {"BLOCK_M": 128, …, "num_warps": 8}}}. Keys of a
configuration are arguments of the kernel and of the compiler. Nothing is measured when a kernel is first needed.

What `policyquant kernels tune` has measured on a GPU goes before these tables on GPUs of its name, for the same version
of Triton; `measured` says where it is kept. The environment variable POLICYQUANT_TUNING=0 leaves it unread.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

_HERE = Path(__file__).parent

Answer = Callable[[str, str], "Mapping[str, Any] | None"]
"""(family, class of shapes) → the configuration to take; None: that of the tables."""

_answers: list[Answer] = []


def configuration(family: str, capability: tuple[int, int], shape_class: str) -> Mapping[str, Any]:
    """The configuration for a GPU: what was measured on it; else that of its architecture, or of the closest older one.

    Raises:
        KeyError: the table has no architecture as old as this one, or not this class of shapes.
    """
    for answer in _answers:
        found = answer(family, shape_class)
        if found is not None:
            return found
    return _of_tables(family, capability, shape_class)


@contextmanager
def answering(answer: Answer) -> Iterator[None]:
    """Inside, in the whole process, `answer` is asked for configurations before the tables are."""
    _answers.insert(0, answer)
    try:
        yield
    finally:
        _answers.remove(answer)


def families() -> list[str]:
    """The families that have tables."""
    return sorted(path.stem for path in _HERE.glob("*.json"))


def shape_classes(family: str, capability: tuple[int, int]) -> list[str]:
    """The classes of shapes that a GPU has configurations for."""
    known = (classes for number, classes in _by_architecture(family) if number <= _number(capability))
    return list(dict.fromkeys(name for classes in known for name in classes))


def shipped(family: str, capability: tuple[int, int], shape_class: str) -> Mapping[str, Any]:
    """The configuration of the table that comes with the package.

    Raises:
        KeyError: the table has no architecture as old as this one, or not this class of shapes.
    """
    for number, classes in _by_architecture(family):
        if number <= _number(capability) and shape_class in classes:
            return classes[shape_class]
    raise KeyError(f"{family}: no configuration of {shape_class!r} for compute capability {capability}")


@cache
def _of_tables(family: str, capability: tuple[int, int], shape_class: str) -> Mapping[str, Any]:
    from policyquant.kernels.tuning.measured import configurations

    own = configurations(capability).get(family, {}).get(shape_class)
    return shipped(family, capability, shape_class) if own is None else own


def forget() -> None:
    """Read what was measured anew when a configuration is next asked for."""
    from policyquant.kernels.tuning import measured

    measured.configurations.cache_clear()
    _of_tables.cache_clear()


def _number(capability: tuple[int, int]) -> int:
    return capability[0] * 10 + capability[1]


@cache
def _by_architecture(family: str) -> list[tuple[int, Mapping[str, Mapping[str, Any]]]]:
    """The newest first."""
    table: Mapping[str, Any] = json.loads((_HERE / f"{family}.json").read_text(encoding="utf-8"))
    return sorted(((int(name.removeprefix("sm_")), table[name]) for name in table), reverse=True)
