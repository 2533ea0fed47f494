"""A row of the table of speeds: an operator on one shape, its contenders, and the bars that it is to reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Inputs = Any
"""Whatever `Row.inputs` makes and the contenders take."""


@dataclass(frozen=True, slots=True)
class Bar:
    """What the better of our own kernels, Triton's or CUDA's unless `by` says others, is to reach.

    Args:
        beside: a contender of the row, of which the speed is to be `at_least` times matched; "copy": the bytes moved a
            second, beside those of a copy; anything else is an error.
        at_least: the ratio.
        by: the implementations of which the better is judged.
    """

    beside: str
    at_least: float
    by: tuple[str, ...] = ("triton", "cuda")


@dataclass(frozen=True, slots=True)
class Row:
    """One operator on one shape.

    Args:
        operator: as the table names it.
        shape: as the table shows it.
        inputs: device → one set of random inputs; called several times for sets that are rotated.
        ours: the operator on a set of inputs, as it dispatches; run again with each implementation forced.
        operators: the names under which implementations of it are forced.
        bytes: least bytes moved by a call.
        flop: operations of a call; 0: not worth naming.
        baselines: name → what is run beside it: torch's own way, or the unfused one.
        bars: what is asked.
        capability: the least that the GPU needs.
    """

    operator: str
    shape: str
    inputs: Callable[[str], Inputs]
    ours: Callable[[Inputs], object]
    operators: tuple[str, ...]
    bytes: int
    flop: int = 0
    baselines: Mapping[str, Callable[[Inputs], object]] = field(default_factory=dict)
    bars: tuple[Bar, ...] = ()
    capability: tuple[int, int] = (8, 9)
