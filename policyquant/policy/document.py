"""A document as written: text, numbers, lists and mappings, each with its place.

Both readers (YAML, JSON) and `from_python` produce these nodes, so that one checker serves every form of a policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from policyquant.errors import Location, PolicyError, Problem

MOST_DEPTH: Final = 100
"""Levels of nesting. A policy needs six; the limit keeps every walk over nodes clear of Python's recursion limit."""

MOST_WEIGHT: Final = 500_000
"""Size of a document after its aliases are expanded: one for each node and one for each 32 characters of text. A
policy of 10,000 rules weighs 100,000."""

MOST_DIGITS: Final = 400
"""Characters of one number: more than any finite float needs, and short enough to convert at once."""

DICT: Final = "<dict>"
"""Stands for the file of a policy that was given as a Python mapping."""


class ScalarNode(NamedTuple):
    """Text, a number, true, false or null."""

    value: str | int | float | bool | None
    location: Location
    written: str = ""
    """A value that is not text as it stands in the file: `~`, `no`, `0x80`."""
    offset: int | None = None
    """How far right of the location the text's first character stands, if the file has the text letter by letter
    (no escapes, one line); else None."""

    @property
    def weight(self) -> int:
        return 1 + (len(self.value) >> 5 if isinstance(self.value, str) else 0)


class SequenceNode(NamedTuple):
    """A list."""

    items: tuple[Node, ...]
    location: Location


class Entry(NamedTuple):
    """One key of a mapping with its value. The key's value is text."""

    key: ScalarNode
    value: Node

    @property
    def name(self) -> str:
        return str(self.key.value)


class MappingNode(NamedTuple):
    """A mapping with distinct keys, in the order of the file."""

    entries: tuple[Entry, ...]
    location: Location

    def get(self, name: str) -> Node | None:
        """The value at a key, or None."""
        return next((entry.value for entry in self.entries if entry.key.value == name), None)


Node = ScalarNode | SequenceNode | MappingNode


def is_text(value: str) -> bool:
    """Whether a string is all characters: none is half of one (a surrogate), which no UTF-8 file can hold."""
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)


def plain(node: Node) -> object:
    """The node's value without places: str, int, float, bool, None, list, dict."""
    if isinstance(node, ScalarNode):
        return node.value
    if isinstance(node, SequenceNode):
        return [plain(item) for item in node.items]
    return {entry.name: plain(entry.value) for entry in node.entries}


def from_python(value: object, *, with_paths: bool = False) -> Node:
    """Nodes for a policy written as Python data. Their locations have no line.

    Args:
        value: the policy.
        with_paths: whether a location's file says where in the data it is, `<dict>.layers['*.mlp']`.

    Raises:
        PolicyError: something in it is neither str, int, float, bool, None, a list, a tuple nor a mapping with text
            keys, a string holds half of a character, or it nests too deep (as one that contains itself does).
    """
    return _from_python(value, DICT, with_paths, MOST_DEPTH)


def _from_python(value: object, path: str, with_paths: bool, levels: int) -> Node:
    location = Location(path)
    if isinstance(value, int) and value.bit_length() > MOST_DIGITS * 3:
        raise PolicyError([Problem(location, f"a number of more than {MOST_DIGITS} digits")])
    if isinstance(value, str) and not is_text(value):
        raise PolicyError([Problem(location, f"the text {show(value)} holds half of a character (a surrogate)")])
    if value is None or isinstance(value, (bool, int, float, str)):
        return ScalarNode(value, location, "" if isinstance(value, str) else repr(value))
    if levels == 0:
        raise PolicyError([Problem(location, f"lists and mappings nest more than {MOST_DEPTH} levels deep")])
    if isinstance(value, Mapping):
        entries = []
        for key, item in value.items():
            if not isinstance(key, str):
                raise PolicyError([Problem(location, f"a key must be text, found a Python {type(key).__name__}")])
            if not is_text(key):
                raise PolicyError([Problem(location, f"the key {show(key)} holds half of a character (a surrogate)")])
            inner = f"{path}{f'.{key}' if key.isidentifier() else f'[{show(key)}]'}" if with_paths else path
            node = _from_python(item, inner, with_paths, levels - 1)
            entries.append(Entry(ScalarNode(key, Location(inner)), node))
        return MappingNode(tuple(entries), location)
    if isinstance(value, (list, tuple)):
        items = (
            _from_python(item, f"{path}[{number}]" if with_paths else path, with_paths, levels - 1)
            for number, item in enumerate(value)
        )
        return SequenceNode(tuple(items), location)
    kind = type(value).__name__
    raise PolicyError([Problem(location, f"expected text, a number, a list or a mapping, found a Python {kind}")])


def describe(node: Node) -> str:
    """What a node is, for "expected …, found …"."""
    if isinstance(node, SequenceNode):
        return "a list" if node.items else "an empty list"
    if isinstance(node, MappingNode):
        return "a mapping" if node.entries else "an empty mapping"
    value = node.value
    if isinstance(value, str):
        return f"the text {show(value)}" if value else "empty text"
    if isinstance(value, bool):
        word = "true" if value else "false"
        return word if node.written.lower() == word else f"`{node.written}`, which YAML reads as {word}"
    if value is None:
        return f"null (`{node.written}`)" if node.written else "nothing"
    return f"the number {shorten(node.written)}"


def show(text: str) -> str:
    """Text in quotes, short enough for a message, control characters escaped."""
    return repr(shorten(text))


def shorten(text: str, most: int = 80) -> str:
    """At most `most` characters of `text`."""
    return text if len(text) <= most else text[: most - 1] + "…"
