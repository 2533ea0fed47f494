"""Timing that holds on a busy machine: contenders take turns in one process, and only ratios are judged."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Contender:
    """Something to be timed."""

    name: str
    run: Callable[[Any], object]
    prepare: Callable[[], object] = lambda: None
    """Makes what `run` takes, anew for every round and before the clock starts."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one contender, one entry a round."""

    seconds: tuple[float, ...]

    @property
    def minimum(self) -> float:
        """The round that was disturbed least."""
        return min(self.seconds)

    @property
    def median(self) -> float:
        """The round in the middle."""
        return statistics.median(self.seconds)


def interleaved(contenders: Sequence[Contender], rounds: int) -> list[Timing]:
    """Time the contenders in turns, so that a slow phase of the machine hits all of them alike.

    Who begins changes from round to round: what runs right after something else finds caches and heap as that left
    them.
    """
    seconds: list[list[float]] = [[] for _ in contenders]
    for turn in range(rounds):
        for place in range(len(contenders)):
            number = (turn + place) % len(contenders)
            seconds[number].append(_once(contenders[number]))
    return [Timing(tuple(each)) for each in seconds]


def _once(contender: Contender) -> float:
    prepared = contender.prepare()
    gc.collect()
    start = time.perf_counter()
    result = contender.run(prepared)
    stop = time.perf_counter()
    del result  # Dropping a large result takes time that is not the contender's.
    return stop - start
