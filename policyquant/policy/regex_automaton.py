r"""Regular expressions as automata that can be stopped and continued in the middle of a name.

RE2 reads one name from its beginning to its end, so with it a pattern costs as many runs as a model has names. An
automaton whose state is a value reads the common beginning of all names once, and all indices that lead to the same
state go on as one (`policyquant.plan.names`).

`automaton_of` reads what people write in patterns (characters, `.`, sets, groups, `|`, `*`, `+`, `?`, `{m,n}`, `\d`,
`\w`, `\s`) with the meaning that RE2 gives it, and declines the rest, which RE2 then runs over each name. That RE2
takes the expression has been checked before, so what is malformed never comes here.

The construction is Glushkov's (1961): one position for each character that is written, and for each position those that
can follow it. A state is the set of positions just read, as bits; transitions are computed when first needed and kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

_MOST_POSITIONS: Final = 1_000
_MOST_TRANSITIONS: Final = 50_000
_DEEPEST: Final = 50


def _bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


class _DeclinedError(Exception):
    """Something that RE2 must run."""


class _Set(NamedTuple):
    """One character: of these ranges, or of everything else."""

    ranges: tuple[tuple[str, str], ...]
    negated: bool = False

    def holds(self, character: str) -> bool:
        return any(low <= character <= high for low, high in self.ranges) != self.negated


class _Sequence(NamedTuple):
    items: Sequence[_Node]


class _Choice(NamedTuple):
    items: Sequence[_Node]


class _Repeated(NamedTuple):
    item: _Node
    least: int
    most: int | None


_Node = _Set | _Sequence | _Choice | _Repeated

_DIGITS: Final = (("0", "9"),)
_CLASSES: Final = {
    "d": _DIGITS,
    "w": (*_DIGITS, ("A", "Z"), ("_", "_"), ("a", "z")),
    "s": (("\t", "\n"), ("\f", "\r"), (" ", " ")),
}
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_ANY: Final = _Set((("\n", "\n"),), negated=True)
_COUNTS: Final = re.compile(r"\{(0|[1-9][0-9]{0,3})(?:(,)(0|[1-9][0-9]{0,3})?)?\}").match
"""`{m}`, `{m,}` and `{m,n}`; to RE2 neither a leading zero nor a missing `m` is a count, and above 1,000 is none."""


class Automaton:
    """A regular expression that matches whole names, ready to run."""

    __slots__ = ("_follow", "_sets", "_transitions", "accept", "initial")

    def __init__(self, sets: Sequence[_Set], follow: Sequence[int], accept: int) -> None:
        self._sets = sets
        self._follow = follow
        self._transitions: dict[tuple[int, str], int] = {}
        self.initial: int = 1
        """Bit 0 is the position before the first character."""
        self.accept = accept
        """Bits of the positions at which a name may end."""

    def step(self, state: int, text: str) -> int:
        """The state after reading `text`. 0: no continuation can match."""
        known = self._transitions
        for character in text:
            after = known.get((state, character))
            state = self._transition(state, character) if after is None else after
            if not state:
                break
        return state

    def _transition(self, state: int, character: str) -> int:
        reachable = 0
        for position in _bits(state):
            reachable |= self._follow[position]
        after = 0
        for position in _bits(reachable):
            if self._sets[position - 1].holds(character):
                after |= 1 << position
        if len(self._transitions) >= _MOST_TRANSITIONS:
            self._transitions.clear()
        self._transitions[state, character] = after
        return after

    def sensitive_at(self, state: int) -> bool:
        """Whether, from this state, two indices may lead to different states."""
        after = {self.step(state, digit) for digit in "0123456789"}
        if len(after) > 1:
            return True
        common = after.pop()
        return any(self.step(common, digit) != common for digit in "0123456789")

    def matches(self, name: str) -> bool:
        """Whether it matches all of `name`."""
        return bool(self.step(self.initial, name) & self.accept)


def automaton_of(expression: str) -> Automaton | None:
    """The automaton of an expression that RE2 takes; None if it says something that only RE2 should run."""
    try:
        return _Builder(_Reader(expression).read()).automaton()
    except _DeclinedError:
        return None


class _Reader:
    """Reads an expression into a tree."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def read(self) -> _Node:
        node = self._choice(0)
        if self.at < len(self.text):
            raise _DeclinedError
        return node

    def _take(self, text: str) -> bool:
        found = self.text.startswith(text, self.at)
        if found:
            self.at += len(text)
        return found

    def _choice(self, depth: int) -> _Node:
        if depth > _DEEPEST:
            raise _DeclinedError
        items = [self._sequence(depth)]
        while self._take("|"):
            items.append(self._sequence(depth))
        return items[0] if len(items) == 1 else _Choice(items)

    def _sequence(self, depth: int) -> _Node:
        items: list[_Node] = []
        # A name is matched as a whole, so `^` at the beginning says nothing new, nor does `$` at the end.
        if depth == 0 and self._take("^") and self._bounds() is not None:
            raise _DeclinedError
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            if self.text[self.at] == "$" and depth == 0 and self.text[self.at + 1 : self.at + 2] in ("", "|"):
                self.at += 1
                break
            items.append(self._repeated(self._atom(depth)))
        return items[0] if len(items) == 1 else _Sequence(items)

    def _atom(self, depth: int) -> _Node:
        character = self.text[self.at]
        self.at += 1
        if character == "(":
            return self._group(depth)
        if character == "[":
            return self._set()
        if character == ".":
            return _ANY
        if character == "\\":
            return self._escape()
        if character in "^$*+?":
            raise _DeclinedError
        return _Set(((character, character),))

    def _group(self, depth: int) -> _Node:
        if self._take("?") and not self._take(":"):
            raise _DeclinedError
        node = self._choice(depth + 1)
        if not self._take(")"):
            raise _DeclinedError
        return node

    def _escape(self) -> _Set:
        character = self.text[self.at : self.at + 1]
        self.at += 1
        if character.lower() in _CLASSES:
            return _Set(_CLASSES[character.lower()], negated=character.isupper())
        literal = self._literal(character)
        return _Set(((literal, literal),))

    def _literal(self, character: str) -> str:
        """The character that stands behind a backslash."""
        if character in _ESCAPES:
            return _ESCAPES[character]
        if not character or character == "_" or character.isalnum() or not character.isascii():
            raise _DeclinedError
        return character

    def _set(self) -> _Set:
        negated = self._take("^")
        ranges: list[tuple[str, str]] = []
        first = True
        while first or not self._take("]"):
            first = False
            if self.text.startswith("[:", self.at) or self.at >= len(self.text):
                raise _DeclinedError
            low = self._set_item()
            if isinstance(low, _Set):
                ranges.extend(low.ranges)
                continue
            high: str | _Set = low
            if self.text.startswith("-", self.at) and not self.text.startswith("-]", self.at):
                self.at += 1
                high = self._set_item()
            if isinstance(high, _Set):
                raise _DeclinedError
            ranges.append((low, high))
        return _Set(tuple(ranges), negated)

    def _set_item(self) -> str | _Set:
        character = self.text[self.at : self.at + 1]
        self.at += 1
        if character != "\\":
            return character
        character = self.text[self.at : self.at + 1]
        self.at += 1
        if character in _CLASSES:
            return _Set(_CLASSES[character])
        return self._literal(character)

    def _repeated(self, node: _Node) -> _Node:
        bounds = self._bounds()
        if bounds is None:
            return node
        self._take("?")  # Lazy: which characters a part consumes differs, what the whole matches does not.
        if self.text[self.at : self.at + 1] in ("*", "+", "?") or self._bounds() is not None:
            raise _DeclinedError
        return _Repeated(node, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return bounds
        if not self.text.startswith("{", self.at):
            return None
        counts = _COUNTS(self.text, self.at)
        if counts is None:
            return None  # A brace that counts nothing is one like any other character.
        self.at = counts.end()
        least, comma, most = counts.groups()
        return int(least), (int(most) if most else None if comma else int(least))


class _Part(NamedTuple):
    """What the positions of a sub-expression are to those around it."""

    empty: bool
    """Whether it matches the empty text."""
    first: int
    """Positions that can begin it."""
    last: int
    """Positions that can end it."""


_EMPTY: Final = _Part(True, 0, 0)


class _Builder:
    """Numbers the positions of a tree and collects what can follow what."""

    def __init__(self, node: _Node) -> None:
        self.sets: list[_Set] = []
        self.follow: list[int] = [0]
        self.whole = self._part(node)
        self._joined(1, self.whole.first)

    def automaton(self) -> Automaton:
        return Automaton(self.sets, self.follow, self.whole.last | (1 if self.whole.empty else 0))

    def _joined(self, last: int, first: int) -> None:
        for position in _bits(last):
            self.follow[position] |= first

    def _part(self, node: _Node) -> _Part:
        if isinstance(node, _Set):
            if len(self.sets) >= _MOST_POSITIONS:
                raise _DeclinedError
            self.sets.append(node)
            self.follow.append(0)
            bit = 1 << len(self.sets)
            return _Part(False, bit, bit)
        if isinstance(node, _Choice):
            parts = [self._part(item) for item in node.items]
            result = parts[0]
            for part in parts[1:]:
                result = _Part(result.empty or part.empty, result.first | part.first, result.last | part.last)
            return result
        if isinstance(node, _Sequence):
            result = _EMPTY
            for item in node.items:
                result = self._then(result, self._part(item))
            return result
        return self._repetition(node)

    def _then(self, one: _Part, other: _Part) -> _Part:
        self._joined(one.last, other.first)
        return _Part(
            one.empty and other.empty,
            one.first | (other.first if one.empty else 0),
            other.last | (one.last if other.empty else 0),
        )

    def _repetition(self, node: _Repeated) -> _Part:
        result = _EMPTY
        part = _EMPTY
        copies = max(node.least, 1) if node.most is None else node.least
        for _ in range(copies):
            part = self._part(node.item)
            result = self._then(result, part)
        if node.most is None:
            self._joined(part.last, part.first)
            return result if node.least else result._replace(empty=True)
        for _ in range(node.most - node.least):
            result = self._then(result, self._part(node.item)._replace(empty=True))
        return result
