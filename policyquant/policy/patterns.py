r"""The pattern language over dotted names. Knows nothing of policies, rules or models.

    *           any run of characters, dots included
    ?           one character, but no dot
    [a-z] [!a]  one character of a set (or not of it), but no dot
    {a,b}       alternatives: nested, empty, any pattern inside
    {0..3,-1}   inside braces, `m..n` or a negative number is a range of indices and fills a whole dotted part
    \           makes the next character literal
    re:...      a regular expression (RE2 syntax) for the whole name

A glob is anchored at both ends. A leading `*.` matches any number of leading parts, none included:

>>> Pattern.compile("*.lm_head").matches("lm_head")
True
>>> Pattern.compile("*.gate").matches("model.layers.0.mlp.gate_proj")
False
>>> Pattern.compile("model.layers.{0..3,-1}.mlp").matches("model.layers.31.mlp", {"model.layers": 32})
True

`matches` is about the name itself. That a glob which names a module also covers what is inside is the business of
whoever walks the names (`policyquant.plan.names`).

How it matches: braces are expanded into branches without braces (at most 10,000), each of which is an automaton
(`policyquant.policy.glob_automaton`); a regular expression is one too, or is run by RE2
(`policyquant.policy.regex_automaton`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from policyquant.policy.glob_automaton import ANY, STAR, Branch, CharacterSet, Range, Token
from policyquant.policy.regex_automaton import Automaton, automaton_of

if TYPE_CHECKING:
    from types import ModuleType

MOST_ALTERNATIVES: Final = 10_000


class PatternError(Exception):
    """A pattern that cannot be read. `offset` counts characters of the pattern from 0."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


@dataclass(frozen=True, slots=True)
class Pattern:
    """A compiled pattern. Make one with `Pattern.compile`. Equal to another with the same text."""

    text: str
    branches: tuple[Branch, ...] = field(compare=False, repr=False)
    """Empty for a regular expression."""
    regex: Any = field(default=None, compare=False, repr=False)
    """A compiled RE2 object, or None for a glob."""
    automaton: Automaton | None = field(default=None, compare=False, repr=False)
    """The same regular expression in a form that can walk down a tree of names, if it has one."""

    @staticmethod
    def compile(text: str) -> Pattern:
        """Read a pattern.

        Raises:
            PatternError: it is empty, a bracket or brace is not closed, a range is malformed or shares its part with
                other characters, there are more than 10,000 alternatives, or a regular expression is not one that
                RE2 takes.
        """
        if not text:
            raise PatternError("an empty pattern reaches nothing", 0)
        if text.startswith("re:"):
            return Pattern(text, (), _compile_regex(text), automaton_of(text[3:]))
        branches = []
        for tokens in _Reader(text).read():
            _check_ranges(tokens)
            branches.append(Branch(tokens))
        return Pattern(text, tuple(branches))

    @property
    def is_regex(self) -> bool:
        """Whether it was written with `re:`."""
        return self.regex is not None

    @property
    def sensitive(self) -> bool:
        """Whether two indices at the same place of a name can get different answers. Not looked into for a regular
        expression: True."""
        return self.is_regex or any(branch.sensitive for branch in self.branches)

    def matches(self, name: str, sizes: Mapping[str, int] | None = None) -> bool:
        """Whether it matches all of `name`.

        `sizes` gives, for the name of each container (`model.layers`), how many layers it has; negative range ends
        count from there.
        """
        if self.regex is not None:
            return self.regex.fullmatch(name) is not None
        return any(branch.matches(name, sizes or {}) for branch in self.branches)

    def names_by_last_part(self, name: str, sizes: Mapping[str, int] | None = None) -> bool:
        """Whether it matches `name` and would not with some other last part: whether it *names* this layer."""
        parent, dot, _ = name.rpartition(".")
        return self.matches(name, sizes) and not self.matches(f"{parent}{dot}\uffff", sizes)

    def first_part(self) -> str | None:
        """The literal first dotted part, if the pattern begins with one: `decoder` of `decoder.*.moe`."""
        match = None if self.regex is not None else _FIRST_PART(self.text)
        return match.group(1) if match else None

    def literal_parts(self) -> list[str]:
        """Its dotted parts that hold no special character, for finding what was probably meant."""
        return [part for part in self.text.removeprefix("re:").split(".") if part and not _SPECIAL(part)]


_FIRST_PART: Final = re.compile(r"([A-Za-z0-9_-]+)(?:\.|\Z)").match
_SPECIAL: Final = re.compile(r"[*?\[\]{}\\,!|()^$+]").search

_RANGE: Final = re.compile(r"(-?[0-9]{1,9})\.\.(-?[0-9]{1,9})|(-[0-9]{1,9})").fullmatch


class _Reader:
    """Reads a glob into its branches."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def read(self) -> list[list[Token]]:
        return self._sequence(depth=0, opened=0)

    def _sequence(self, depth: int, opened: int) -> list[list[Token]]:
        """Everything up to the end, or inside braces up to the `,` or `}` that ends the item."""
        if depth > 50:
            raise PatternError("braces nest more than 50 deep", self.position)
        text = self.text
        branches: list[list[Token]] = [[]]
        while self.position < len(text):
            character = text[self.position]
            if depth and character in ",}":
                break
            start = self.position
            self.position += 1
            added: list[list[Token]]
            if character == "*":
                added = [[STAR]]
            elif character == "?":
                added = [[ANY]]
            elif character == "[":
                added = [[self._set(start)]]
            elif character == "{":
                added = self._braces(start, depth)
            elif character == "\\":
                if self.position == len(text):
                    raise PatternError("a backslash at the end has nothing to make literal", start)
                added = [[text[self.position]]]
                self.position += 1
            else:
                added = [[character]]
            if len(added) == 1:
                for branch in branches:
                    branch.extend(added[0])
            else:
                if len(branches) * len(added) > MOST_ALTERNATIVES:
                    raise PatternError(f"more than {MOST_ALTERNATIVES:,} alternatives in one pattern", start)
                branches = [[*branch, *more] for branch in branches for more in added]
        else:
            if depth:
                raise PatternError("this brace is not closed; write \\{ for a literal brace", opened)
        return branches

    def _braces(self, opened: int, depth: int) -> list[list[Token]]:
        alternatives: list[list[Token]] = []
        ranges: list[Range] = []
        while True:
            start = self.position
            item = self._range_item()
            if item is not None:
                ranges.append(item)
            else:
                self.position = start
                alternatives.extend(self._sequence(depth + 1, opened))
                if len(alternatives) > MOST_ALTERNATIVES:
                    raise PatternError(f"more than {MOST_ALTERNATIVES:,} alternatives in one pattern", opened)
            if self.position >= len(self.text):
                raise PatternError("this brace is not closed; write \\{ for a literal brace", opened)
            closing = self.text[self.position]
            self.position += 1
            if closing == "}":
                break
        if ranges:
            alternatives.append([tuple(ranges)])
        return alternatives

    def _range_item(self) -> Range | None:
        """A range, if the item of a brace that begins here reads as one."""
        end = self.position
        while end < len(self.text) and self.text[end] not in ",}{\\":
            end += 1
        match = _RANGE(self.text[self.position : end])
        if match is None or end == len(self.text) or self.text[end] not in ",}":
            return None
        first, last, single = match.groups()
        result = Range(int(single), int(single)) if single else Range(int(first), int(last))
        if (result.first < 0) == (result.last < 0) and result.first > result.last:
            raise PatternError(
                f"the range {match.group()} is empty; write {{{result.last}..{result.first}}}", self.position
            )
        self.position = end
        return result

    def _set(self, opened: int) -> CharacterSet:
        text = self.text
        negated = text.startswith("!", self.position)
        if negated:
            self.position += 1
        ranges: list[tuple[str, str]] = []
        first = True
        while True:
            if self.position >= len(text):
                raise PatternError("this bracket is not closed; write \\[ for a literal bracket", opened)
            if text[self.position] == "]" and not first:
                self.position += 1
                break
            first = False
            low = self._set_character(opened)
            high = low
            if text.startswith("-", self.position) and not text.startswith("-]", self.position):
                self.position += 1
                high = self._set_character(opened)
                if high < low:
                    raise PatternError(f"the range {low}-{high} in this bracket is empty", opened)
            ranges.append((low, high))
        if not negated and all(low == high == "." for low, high in ranges):
            raise PatternError("a bracket never matches a dot; write the dot itself", opened)
        return CharacterSet(tuple(ranges), negated)

    def _set_character(self, opened: int) -> str:
        if self.text.startswith("\\", self.position):
            self.position += 1
        if self.position >= len(self.text):
            raise PatternError("this bracket is not closed; write \\[ for a literal bracket", opened)
        self.position += 1
        return self.text[self.position - 1]


def _check_ranges(tokens: Sequence[Token]) -> None:
    for position, token in enumerate(tokens):
        if isinstance(token, tuple) and not isinstance(token, CharacterSet):
            before = tokens[position - 1] if position else "."
            after = tokens[position + 1] if position + 1 < len(tokens) else "."
            if before != "." or after != ".":
                raise PatternError(
                    "an index range fills a whole dotted part; put a dot (or an end of the pattern) on both sides", 0
                )


# --- regular expressions ---------------------------------------------------------------------------------------------

_LOOK_AROUND: Final = re.compile(r"\(\?<?[=!]")


def _re2() -> ModuleType:
    import re2

    module: ModuleType = re2
    return module


def _options(megabytes: int) -> Any:
    """Options of RE2: silent, and with this much memory for one automaton."""
    options = _re2().Options()
    options.log_errors = False
    options.max_mem = megabytes << 20
    return options


def _compile_regex(text: str) -> Any:
    body = text[3:]
    if not body:
        raise PatternError("an empty regular expression reaches nothing", 3)
    module = _re2()
    try:
        return module.compile(body, _options(16))
    except module.error as error:
        look_around = _LOOK_AROUND.search(re.sub(r"\\.", "__", body))
        if look_around:
            raise PatternError(
                f"look-around {look_around.group()}…) is not a regular language; to leave layers out, write a later"
                " rule for them with method `none`",
                3 + look_around.start(),
            ) from None
        reason = error.args[0] if error.args else "not a regular expression"
        if isinstance(reason, bytes):
            reason = reason.decode("utf-8", "replace")
        raise PatternError(f"not a regular expression (RE2 syntax): {reason}", 3) from None


def regex_set(patterns: Sequence[Pattern]) -> Any:
    """One automaton for many regular expressions: `.Match(name)` gives the positions of those that match all of it, or
    None."""
    result = _re2().Set.FullMatchSet(_options(64))
    for pattern in patterns:
        result.Add(pattern.text[3:])
    result.Compile()
    return result
