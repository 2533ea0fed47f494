"""From a pattern to what it reaches, and the namespace that it belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from policyquant.inventory.layers import NAMESPACES, Namespace
from policyquant.inventory.ranges import difference
from policyquant.plan.names import NameTree
from policyquant.plan.units import Reach, Unit
from policyquant.policy.patterns import Pattern


@dataclass(frozen=True, slots=True)
class Match:
    """What one pattern reaches."""

    pattern: Pattern
    namespace: Namespace | None
    """The first in which it reaches anything; None: it reaches nothing."""
    reach: Reach
    elsewhere: tuple[tuple[Namespace, Reach], ...] = ()
    """What later namespaces would have added."""


class Matcher:
    """Runs patterns over all names of an inventory, each pattern once."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self.units = units
        self.trees = {namespace: NameTree(units, namespace) for namespace in NAMESPACES}
        self._known: dict[str, Match] = {}

    def prepare(self, patterns: Iterable[Pattern]) -> None:
        """Say which patterns will be asked for, so that regular expressions can run together."""
        regexes = [pattern for pattern in patterns if pattern.is_regex]
        if regexes:
            for tree in self.trees.values():
                tree.prepare(regexes)

    def match(self, pattern: Pattern) -> Match:
        """What `pattern` reaches, in the first namespace in which it reaches anything."""
        known = self._known.get(pattern.text)
        if known is None:
            self._known[pattern.text] = known = self._match(pattern)
        return known

    def _match(self, pattern: Pattern) -> Match:
        namespace: Namespace | None = None
        reach: Reach = {}
        elsewhere: list[tuple[Namespace, Reach]] = []
        for candidate in NAMESPACES:
            found = self.trees[candidate].reach(pattern)
            if not found:
                continue
            if namespace is None:
                namespace, reach = candidate, found
            else:
                added = {
                    unit: more for unit, ranges in found.items() if (more := difference(ranges, reach.get(unit, ())))
                }
                if added:
                    elsewhere.append((candidate, added))
        return Match(pattern, namespace, reach, tuple(elsewhere))
