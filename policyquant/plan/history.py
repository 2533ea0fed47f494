"""Which rules reached each member of a unit, in order, folded: members with the same history share one object."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from policyquant.inventory.layers import Namespace
from policyquant.inventory.ranges import Ranges


class Hit(NamedTuple):
    """A rule reached a layer."""

    rule: int
    """Number of the rule in the policy."""
    pattern: int
    """Which of the rule's patterns did, the first if several; -1 for a rule by kind alone."""
    namespace: Namespace | None
    named: bool
    """Whether the rule names the layer, which protection asks for."""


class History:
    """The hits so far, as a chain. Equal chains from one root are the same object."""

    __slots__ = ("_next", "before", "hit")

    def __init__(self, before: History | None = None, hit: Hit | None = None) -> None:
        self.before = before
        self.hit = hit
        self._next: dict[Hit, History] = {}

    def then(self, hit: Hit) -> History:
        """This history and one more hit. A second hit of the same rule only adds that it names the layer."""
        last = self.hit
        if last is not None and last.rule == hit.rule:
            if last.named or not hit.named:
                return self
            assert self.before is not None
            return self.before.then(hit)
        result = self._next.get(hit)
        if result is None:
            self._next[hit] = result = History(self, hit)
        return result

    def hits(self) -> list[Hit]:
        """All hits, the first rule first."""
        result: list[Hit] = []
        node: History | None = self
        while node is not None and node.hit is not None:
            result.append(node.hit)
            node = node.before
        result.reverse()
        return result


class Segments:
    """A value for each of `count` members, kept as runs of equal values."""

    __slots__ = ("count", "starts", "values")

    def __init__(self, count: int, value: History) -> None:
        self.count = count
        self.starts = [0]
        self.values = [value]

    def __iter__(self) -> Iterator[tuple[int, int, History]]:
        """Start, stop and value of each run."""
        return zip(self.starts, [*self.starts[1:], self.count], self.values, strict=True)

    def record(self, ranges: Ranges, hit: Hit) -> None:
        """`hit` reached the members in `ranges`."""
        for start, stop in ranges:
            first = self._cut(start)
            last = self._cut(stop)
            for position in range(first, last):
                self.values[position] = self.values[position].then(hit)

    def _cut(self, member: int) -> int:
        """Position of the run that begins at `member`, splitting one if need be."""
        position = bisect_left(self.starts, member)
        if position < len(self.starts) and self.starts[position] == member:
            return position
        if member >= self.count:
            return len(self.starts)
        self.starts.insert(position, member)
        self.values.insert(position, self.values[position - 1])
        return position
