"""The search for a faster configuration, which knows of kernels and clocks only what `measure` tells it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

LEAST_GAIN: Final = 1.03
"""How many times as fast a configuration must be to take the place of the present one."""
_MOST_CONFIRMED: Final = 3


@dataclass(frozen=True, slots=True)
class Failure:
    """A configuration that does not compile, does not run, or gives another result."""

    reason: str


Configuration = Mapping[str, Any]
Measure = Callable[[Configuration], "float | Failure"]
"""The seconds that a configuration takes."""


@dataclass(slots=True)
class Found:
    """What a search has found."""

    best: Configuration | None = None
    """None: no candidate is `LEAST_GAIN` times as fast as the present configuration."""
    seconds: float | None = None
    """Of the best, or of the present one if that is it; None: the present one does not run."""
    before: float | None = None
    """Of the present one, measured beside the best."""
    tried: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    """Reason → of how many candidates, or of the present one."""
    left: int = 0
    """Candidates that there was no time for."""


def search(
    present: Configuration,
    candidates: Sequence[Configuration],
    measure: Measure,
    goes_on: Callable[[], bool] = lambda: True,
) -> Found:
    """The fastest of the candidates, if it is enough faster than the present configuration.

    Clocks and temperatures drift, so what seems faster is measured again beside the present one before it wins.

    Args:
        goes_on: asked before each candidate: whether there is time left.
    """
    found = Found()
    before = measure(present)
    if isinstance(before, Failure):
        found.failed[before.reason] += 1
        found.left = len(candidates)
        return found
    found.before = found.seconds = before
    faster: list[tuple[float, int]] = []
    for i, candidate in enumerate(candidates):
        if not goes_on():
            found.left = len(candidates) - i
            break
        found.tried += 1
        seconds = measure(candidate)
        if isinstance(seconds, Failure):
            found.failed[seconds.reason] += 1
        elif seconds * LEAST_GAIN <= before:
            faster.append((seconds, i))
    for _, i in sorted(faster)[:_MOST_CONFIRMED]:
        again, seconds = measure(present), measure(candidates[i])
        if not isinstance(again, Failure) and not isinstance(seconds, Failure) and seconds * LEAST_GAIN <= again:
            found.best, found.before, found.seconds = candidates[i], again, seconds
            break
    return found
