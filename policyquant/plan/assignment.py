"""The decision for every member of every unit, kept as runs of members that share one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from policyquant.inventory.ranges import Ranges
from policyquant.plan.decide import Decision
from policyquant.plan.units import Unit

Run = tuple[int, int, Decision]
"""Members `start` up to `stop`, and what holds for them."""


class Assignment:
    """Decisions by unit and member."""

    def __init__(self, units: Sequence[Unit], runs: Sequence[list[Run]]) -> None:
        self.units = units
        self._runs = list(runs)

    def runs(self, unit: Unit) -> Sequence[Run]:
        """The runs of one unit, in order."""
        return self._runs[unit.number]

    def within(self, unit: Unit, ranges: Ranges) -> Iterator[Run]:
        """The runs of one unit, cut to the members in `ranges`."""
        runs = self._runs[unit.number]
        for start, stop in ranges:
            position = bisect_right(runs, start, key=lambda run: run[0]) - 1
            while position < len(runs) and runs[position][0] < stop:
                first, last, decision = runs[position]
                yield max(first, start), min(last, stop), decision
                position += 1

    def at(self, unit: Unit, member: int) -> Decision:
        """The decision for one member."""
        return next(self.within(unit, ((member, member + 1),)))[2]

    def put(self, unit: Unit, ranges: Ranges, settled: Decision) -> None:
        """Give the members in `ranges` another decision."""
        result: list[Run] = []
        for first, last, decision in self._runs[unit.number]:
            position = first
            for start, stop in ranges:
                start, stop = max(start, first), min(stop, last)
                if start >= stop:
                    continue
                if start > position:
                    result.append((position, start, decision))
                result.append((start, stop, settled))
                position = stop
            if position < last:
                result.append((position, last, decision))
        self._runs[unit.number] = result
