"""Which units a pattern reaches: the names of one namespace as a tree of templates, and patterns run over it.

The tree has one node per dotted part and one per index position, whatever the number of layers and experts. A pattern
without wildcards walks straight down; any other carries the state of its automaton from node to node, so that common
beginnings of names are read once. At an index, a pattern that treats all digits alike takes one step; only one that
tells indices apart (a range, `[0-3]`, a literal index) looks at each value, and the values that lead to the same state
go on together.

A glob that matches a node's name covers everything below it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from policyquant.inventory.collapse import is_index
from policyquant.inventory.layers import INDEX, Indices, NameForm, Namespace
from policyquant.inventory.ranges import Ranges, from_positions, union
from policyquant.plan.units import Reach, Unit, add_members
from policyquant.policy.glob_automaton import Branch
from policyquant.policy.patterns import Pattern, regex_set
from policyquant.policy.regex_automaton import Automaton

Region = tuple[frozenset[int] | None, ...]
"""For each index on the way down, the values that got here; None: all."""

REGEXES_AT_ONCE = 100
"""Regular expressions in one automaton: more of them would need more memory than RE2 is given."""


@dataclass(eq=False, slots=True)
class Node:
    """One dotted part; the root is the empty name."""

    depth: int = 0
    """How many indices stand above it."""
    children: dict[str, Node] = field(default_factory=dict)
    index: Node | None = None
    """The child for all indices."""
    entries: list[tuple[Unit, NameForm]] = field(default_factory=list)
    """Units whose name ends here."""
    below: list[tuple[Unit, NameForm]] = field(default_factory=list)
    """Units whose name ends here or further down."""
    measured: tuple[tuple[int, ...], dict[Indices, int]] | None = None
    """Of the index below: all its values, and the size of the container by the indices above."""


class NameTree:
    """All names of one namespace."""

    def __init__(self, units: Sequence[Unit], namespace: Namespace) -> None:
        self.namespace: Namespace = namespace
        self.root = Node()
        self._regexes: dict[str, Reach] = {}
        for unit in units:
            # A layer's own name is a name of each of its parts, also where it only holds them (3-D experts).
            own = unit.layer.names.get(namespace, ())
            for form in dict.fromkeys((*unit.part.names.get(namespace, ()), *own)):
                self._insert(unit, form)

    def _insert(self, unit: Unit, form: NameForm) -> None:
        node = self.root
        entry = (unit, form)
        node.below.append(entry)
        for part in form.template.split("."):
            if part == INDEX:
                if node.index is None:
                    node.index = Node(node.depth + 1)
                node = node.index
            elif part in node.children:
                node = node.children[part]
            else:
                node.children[part] = child = Node(node.depth)
                node = child
            node.below.append(entry)
        node.entries.append(entry)

    # --- globs -------------------------------------------------------------------------------------------------------

    def reach(self, pattern: Pattern) -> Reach:
        """The members of each unit that `pattern` reaches; units of which it reaches none are absent."""
        if pattern.is_regex:
            return self._reach_regex(pattern)
        found: Reach = {}
        for branch in pattern.branches:
            if branch.literal is not None:
                self._walk_literal(branch.literal, found)
            else:
                _Walk(branch, found).visit(self.root, branch.initial, (), first=True)
        return found

    def _walk_literal(self, name: str, found: Reach) -> None:
        node = self.root
        region: Region = ()
        for part in name.split("."):
            child = node.children.get(part)
            if child is None:
                if node.index is None or not is_index(part):
                    return
                child = node.index
                region = (*region, frozenset((int(part),)))
            node = child
        _collect(node.below, region, found)

    # --- regular expressions -----------------------------------------------------------------------------------------

    def prepare(self, patterns: Iterable[Pattern]) -> None:
        """Run the regular expressions among `patterns` that only RE2 can run together, in one pass over the names."""
        todo = {p.text: p for p in patterns if p.is_regex and p.automaton is None and p.text not in self._regexes}
        texts = list(todo)
        for start in range(0, len(texts), REGEXES_AT_ONCE):
            self._run_set([todo[text] for text in texts[start : start + REGEXES_AT_ONCE]])

    def _run_set(self, patterns: Sequence[Pattern]) -> None:
        match = regex_set(patterns).Match
        reached: list[Reach] = [{} for _ in patterns]
        for unit, form in self.root.below:
            members: dict[int, list[int]] = {}
            for member, name in enumerate(form.fill_all(unit.indices)):
                for position in match(name) or ():
                    members.setdefault(position, []).append(member)
            for position, hits in members.items():
                add_members(reached[position], unit.number, from_positions(hits))
        self._regexes.update((pattern.text, reach) for pattern, reach in zip(patterns, reached, strict=True))

    def _reach_regex(self, pattern: Pattern) -> Reach:
        if pattern.automaton is not None:
            found: Reach = {}
            _WholeNames(pattern.automaton, found).visit(self.root, pattern.automaton.initial, (), first=True)
            return found
        self.prepare((pattern,))
        return self._regexes[pattern.text]

    # --- naming ------------------------------------------------------------------------------------------------------

    def named(self, pattern: Pattern, unit: Unit, within: Ranges) -> Ranges:
        """Members of `unit`, of those in `within`, that `pattern` *names* rather than merely covers."""
        result: Ranges = ()
        for form in unit.part.names.get(self.namespace, ()):
            if not pattern.sensitive:
                if pattern.names_by_last_part(form.fill(unit.indices[within[0][0]])):
                    return within
                continue
            sizes = self.sizes_on(form) if not pattern.is_regex else {}
            result = union(
                result,
                from_positions(
                    member
                    for start, stop in within
                    for member in range(start, stop)
                    if pattern.names_by_last_part(form.fill(unit.indices[member]), sizes)
                ),
            )
        return result

    def sizes_on(self, form: NameForm) -> dict[str, int]:
        """Name of each container on the way to the names of `form` → how many layers it has."""
        result: dict[str, int] = {}
        node = self.root
        before: list[str] = []
        for part in form.template.split("."):
            if part == INDEX and node.index is not None:
                template = ".".join(before)
                for prefix, size in measure(node)[1].items():
                    pieces = template.split(INDEX)
                    numbers = [*map(str, prefix), ""]
                    result["".join(p + n for p, n in zip(pieces, numbers, strict=True))] = size
                node = node.index
            else:
                if is_index(part):
                    # The one index of a container that does not repeat (`mtp.0`).
                    result[".".join(before)] = int(part) + 1
                node = node.children[part]
            before.append(part)
        return result

    def indices_in(self, container: str) -> tuple[int, ...]:
        """The indices below the module with this name, sorted; empty if there is none or it has no index below."""
        node = self.root
        for part in container.split(".") if container else ():
            child = node.children.get(part, node.index if is_index(part) else None)
            if child is None:
                return ()
            node = child
        return () if node.index is None else measure(node)[0]

    def parts(self) -> set[str]:
        """All dotted parts that are no index."""
        return set(_parts(self.root))


def _parts(node: Node) -> Iterator[str]:
    for part, child in node.children.items():
        yield part
        yield from _parts(child)
    if node.index is not None:
        yield from _parts(node.index)


class _Walk:
    """One branch of a glob on its way through a tree."""

    def __init__(self, branch: Branch, found: Reach) -> None:
        self.branch = branch
        self.found = found
        self.memory: dict[tuple[int, str], int] = {}

    def visit(self, node: Node, state: int, region: Region, *, first: bool = False) -> None:
        branch = self.branch
        if state & branch.accept:
            _collect(node.below, region, self.found)
            return
        if not first:
            state = branch.step(state, ".")
            if not state:
                return
        memory = self.memory
        for part, child in node.children.items():
            after = memory.get((state, part))
            if after is None:
                if branch.ranges and is_index(part):
                    # The one index of a container that does not repeat (`mtp.0`).
                    after = branch.step_index(state, int(part), int(part) + 1)
                else:
                    after = branch.step(state, part)
                memory[state, part] = after
            if after:
                self.visit(child, after, region)
        if node.index is not None:
            self._visit_index(node, node.index, state, region)

    def _visit_index(self, node: Node, child: Node, state: int, region: Region) -> None:
        branch = self.branch
        ranges = [r for bit, alternatives in branch.ranges if state & bit for r in alternatives]
        if not ranges and not branch.sensitive_at(state):
            after = branch.step(state, "0")
            if after:
                self.visit(child, after, (*region, None))
            return
        from_end = any(r.from_end for r in ranges)
        for size, narrowed in _by_size(node, region) if from_end else ((0, region),):
            every = measure(node)[0]
            for after, values in branch.groups(state, every, size).items():
                self.visit(child, after, (*narrowed, None if len(values) == len(every) else frozenset(values)))


class _WholeNames:
    """A regular expression on its way through a tree: it matches whole names and covers nothing below them."""

    def __init__(self, automaton: Automaton, found: Reach) -> None:
        self.automaton = automaton
        self.found = found

    def visit(self, node: Node, state: int, region: Region, *, first: bool = False) -> None:
        step = self.automaton.step
        if not first:
            if state & self.automaton.accept:
                _collect(node.entries, region, self.found)
            state = step(state, ".")
            if not state:
                return
        for part, child in node.children.items():
            after = step(state, part)
            if after:
                self.visit(child, after, region)
        if node.index is None:
            return
        if not self.automaton.sensitive_at(state):
            after = step(state, "0")
            if after:
                self.visit(node.index, after, (*region, None))
            return
        groups: dict[int, list[int]] = {}
        values = measure(node)[0]
        for value in values:
            after = step(state, str(value))
            if after:
                groups.setdefault(after, []).append(value)
        for after, alike in groups.items():
            self.visit(node.index, after, (*region, None if len(alike) == len(values) else frozenset(alike)))


def _collect(entries: Iterable[tuple[Unit, NameForm]], region: Region, found: Reach) -> None:
    for unit, form in entries:
        constraints: dict[int, frozenset[int]] = {}
        for values, position, offset in zip(region, form.positions, form.offsets, strict=False):
            if values is not None:
                wanted = frozenset(v + offset for v in values) if offset else values
                constraints[position] = constraints[position] & wanted if position in constraints else wanted
        reached = unit.select(constraints)
        if reached:
            add_members(found, unit.number, reached)


def measure(node: Node) -> tuple[tuple[int, ...], dict[Indices, int]]:
    """All values of the index below `node`, and by the indices above it how many layers the container has.

    Prediction layers are values, but do not count for the size unless there is nothing else.
    """
    if node.measured is None:
        assert node.index is not None
        values: set[tuple[tuple[int, ...], int]] = set()
        sizes: dict[Indices, int] = {}
        of_predictions: dict[Indices, int] = {}
        for unit, form in node.index.below:
            position, offset = form.positions[node.depth], form.offsets[node.depth]
            counted = of_predictions if unit.layer.prediction else sizes
            for key, found in _values_at(unit, form.positions[: node.depth], position):
                values.add((found, offset))
                prefix = tuple(value - o for value, o in zip(key, form.offsets, strict=False))
                counted[prefix] = max(counted.get(prefix, 0), found[-1] - offset + 1)
        every = {value - offset for found, offset in values for value in found}
        node.measured = (tuple(sorted(every)), of_predictions | sizes)
    return node.measured


def _values_at(unit: Unit, above: tuple[int, ...], position: int) -> Iterator[tuple[Indices, tuple[int, ...]]]:
    """The values of the index at `position`, sorted, by the indices at the positions `above`."""
    if above == tuple(range(position)):
        for key, tree in unit.tree.nodes(position):
            yield key, tree.values
        return
    for key, ranges in unit.by_key(above).items():
        members = (indices for start, stop in ranges for indices in unit.indices[start:stop])
        yield key, tuple(sorted({indices[position] for indices in members}))


def _by_size(node: Node, region: Region) -> Iterator[tuple[int, Region]]:
    """Split a region by the size of the container below it."""
    by_size: dict[int, list[Indices]] = {}
    for prefix, size in measure(node)[1].items():
        if all(values is None or value in values for value, values in zip(prefix, region, strict=True)):
            by_size.setdefault(size, []).append(prefix)
    if len(by_size) == 1:
        yield next(iter(by_size)), region
    elif node.depth == 1:
        for size, prefixes in by_size.items():
            yield size, (frozenset(value for (value,) in prefixes),)
    else:
        for size, prefixes in by_size.items():
            for prefix in prefixes:
                yield size, tuple(frozenset((value,)) for value in prefix)
