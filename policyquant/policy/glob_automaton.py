"""Globs without braces as automata.

A branch is a list of tokens, run as a bit-parallel automaton (Shift-And; Baeza-Yates and Gonnet 1992, with self-loops
for `*` after Navarro and Raffinot): bit i of the state says that the first i tokens can have consumed what was read.
One step is a few integer operations, whatever the pattern; nothing backtracks.

A state is a value, so that whoever walks a tree of names reads their common beginnings once, and goes on below an index
once for all indices that lead to the same state.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from enum import Enum
from itertools import count
from typing import Final, NamedTuple


class Range(NamedTuple):
    """Indices `first` to `last`, both included; a negative end counts from the end of the container."""

    first: int
    last: int

    def clip(self, size: int) -> range:
        """The indices meant in a container of `size` layers (prediction layers not counted)."""
        first = self.first + size if self.first < 0 else self.first
        last = self.last + size if self.last < 0 else self.last
        return range(max(first, 0), last + 1)

    def among(self, values: Sequence[int], size: int) -> Sequence[int]:
        """Those of some sorted indices that are meant in a container of `size` layers."""
        meant = self.clip(size)
        return values[bisect_left(values, meant.start) : bisect_right(values, meant.stop - 1)]

    @property
    def from_end(self) -> bool:
        """Whether an end depends on the size of the container."""
        return self.first < 0 or self.last < 0


class _Star(Enum):
    """Any run of characters. An enumeration, so that a copy of it is still the same object."""

    STAR = "*"


class CharacterSet(NamedTuple):
    """One character, never a dot: of `ranges`, or of everything else. `?` is the negation of nothing."""

    ranges: tuple[tuple[str, str], ...]
    negated: bool

    def holds(self, character: str) -> bool:
        """Whether it takes `character`."""
        if character == ".":
            return False
        return any(low <= character <= high for low, high in self.ranges) != self.negated


STAR: Final = _Star.STAR
ANY: Final = CharacterSet((), True)

Token = str | _Star | CharacterSet | tuple[Range, ...]


class Branch:
    """A glob without braces, ready to run."""

    __slots__ = ("_bits", "_tokens", "accept", "initial", "literal", "ranges", "sensitive", "stars")

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens = _without_double_stars(tokens)
        self.accept: int = 1 << len(tokens)
        self.stars = 0
        self.ranges: tuple[tuple[int, tuple[Range, ...]], ...] = ()
        """Bit before an index range, and the range's alternatives."""
        for position, token in enumerate(tokens):
            if token is STAR:
                self.stars |= 1 << position
            elif isinstance(token, tuple) and not isinstance(token, CharacterSet):
                self.ranges += ((1 << position, token),)
        leading = len(tokens) > 1 and tokens[0] is STAR and tokens[1] == "."
        self.initial: int = self._closed(0b101 if leading else 0b1)
        self._bits: dict[str, int] = {}
        self.literal: str | None = "".join(tokens) if all(isinstance(t, str) for t in tokens) else None  # type: ignore[arg-type]
        """The one name it matches, if it has no wildcard."""
        self.sensitive: bool = bool(self.ranges) or _tells_digits_apart(tokens)
        """Whether two indices at the same place of a name can get different answers."""

    def _closed(self, state: int) -> int:
        return state | (state & self.stars) << 1

    def _bits_of(self, character: str) -> int:
        bits = 0
        for position, token in enumerate(self._tokens):
            if token == character or (isinstance(token, CharacterSet) and token.holds(character)):
                bits |= 1 << position
        self._bits[character] = bits
        return bits

    def step(self, state: int, text: str) -> int:
        """The state after reading `text`. 0: no continuation can match."""
        bits, stars = self._bits, self.stars
        for character in text:
            taken = bits.get(character)
            if taken is None:
                taken = self._bits_of(character)
            state = (state & taken) << 1 | state & stars
            state |= (state & stars) << 1
            if not state:
                break
        return state

    def step_index(self, state: int, index: int, size: int) -> int:
        """The state after reading a whole dotted part that is `index`, in a container of `size` layers."""
        after = self.step(state, str(index))
        for bit, ranges in self.ranges:
            if state & bit and any(index in r.clip(size) for r in ranges):
                after |= self._closed(bit << 1)
        return after

    def groups(self, state: int, values: Sequence[int], size: int) -> Mapping[int, Sequence[int]]:
        """The states after reading a whole dotted part that is an index, with the indices that lead to each.

        `values` are the indices there are, sorted, in a container of `size` layers. Only the end or a dot can follow an
        index: states that differ in nothing that matters then may be given as one, or left out if nothing matches then.
        """
        written = self._written_indices(state)
        if written is None:
            return _alike({value: self.step_index(state, value, size) for value in values})
        # All indices that are neither written nor in a range lead where any one of them leads.
        ordinary = self.step(state, str(next(value for value in count() if value not in written)))
        special: dict[int, int] = {}
        for value in written:
            position = bisect_left(values, value)
            if position < len(values) and values[position] == value:
                special[value] = self.step(state, str(value))
        for bit, ranges in self.ranges:
            if state & bit:
                more = self._closed(bit << 1)
                for each in ranges:
                    for value in each.among(values, size):
                        special[value] = special.get(value, ordinary) | more
        if ordinary:
            return _alike({value: special.get(value, ordinary) for value in values})
        return _alike({value: special[value] for value in sorted(special)})

    def _written_indices(self, state: int) -> set[int] | None:
        """The indices that the pattern, from this state, has as literal text; all others are alike to it (but for
        ranges). None: it may tell any two apart, because a character set takes a digit, or a run of literal characters
        with a digit in it does not fill a whole part."""
        tokens = self._tokens
        written: set[int] = set()
        for position, token in enumerate(tokens):
            if not state >> position & 1:
                continue
            if isinstance(token, CharacterSet):
                if any(token.holds(digit) for digit in "0123456789"):
                    return None
            elif isinstance(token, str) and token in "0123456789":
                if position and tokens[position - 1] is STAR:
                    return None
                end = position
                while end < len(tokens) and isinstance(tokens[end], str) and tokens[end] != ".":
                    end += 1
                if end < len(tokens) and tokens[end] != ".":
                    return None
                text = "".join(map(str, tokens[position:end]))
                if _INDEX(text):
                    written.add(int(text))
        return written

    def sensitive_at(self, state: int) -> bool:
        """Whether, from this state, two indices read as digits can lead to different states."""
        if not self.sensitive:
            return False
        digits = 0
        for digit in "0123456789":
            bits = self._bits.get(digit)
            digits |= self._bits_of(digit) if bits is None else bits
        return bool(state & digits)

    def matches(self, name: str, sizes: Mapping[str, int]) -> bool:
        """Whether it matches all of `name`; `sizes` tells how many layers a container has."""
        state = self.initial
        before = ""
        for part in name.split("."):
            if before:
                state = self.step(state, ".")
            if self.ranges and _INDEX(part):
                container = before.removesuffix(".")
                state = self.step_index(state, int(part), sizes.get(container, 0))
            else:
                state = self.step(state, part)
            if not state:
                return False
            before += part + "."
        return bool(state & self.accept)


def _alike(states: Mapping[int, int]) -> dict[int, list[int]]:
    """Indices by the state that they lead to, less those that lead to none."""
    groups: dict[int, list[int]] = {}
    for value, state in states.items():
        if state:
            groups.setdefault(state, []).append(value)
    return groups


_INDEX: Final = re.compile(r"(?:0|[1-9][0-9]{0,8})\Z").match


def _without_double_stars(tokens: Sequence[Token]) -> list[Token]:
    return [t for i, t in enumerate(tokens) if not (t is STAR and i and tokens[i - 1] is STAR)]


def _tells_digits_apart(tokens: Sequence[Token]) -> bool:
    """Whether anything but `*` can consume a digit of an index.

    A literal digit next to a literal letter or underscore cannot (`w1`, `conv1d`): an index fills a whole part.
    """
    for position, token in enumerate(tokens):
        if isinstance(token, CharacterSet) and any(token.holds(digit) for digit in "0123456789"):
            return True
        if isinstance(token, str) and token.isdigit():
            run = _literal_run(tokens, position)
            if not any(character.isalpha() or character in "_-" for character in run):
                return True
    return False


def _literal_run(tokens: Sequence[Token], position: int) -> str:
    """The literal characters around `position`, up to a dot or anything that is no literal."""
    first, last = position, position
    while first > 0 and isinstance(tokens[first - 1], str) and tokens[first - 1] != ".":
        first -= 1
    while last + 1 < len(tokens) and isinstance(tokens[last + 1], str) and tokens[last + 1] != ".":
        last += 1
    return "".join(str(token) for token in tokens[first : last + 1])
