"""JSON text → nodes with places.

Strict (RFC 8259, UTF-8, no duplicate keys), except that NaN and Infinity are read as the numbers they are: files of
other tools carry them beside a policy. The checker refuses them inside of one. Nothing recurses.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import Final, NoReturn

from policyquant.errors import Location, PolicyError, Problem
from policyquant.policy.document import (
    MOST_DEPTH,
    MOST_DIGITS,
    MOST_WEIGHT,
    Entry,
    MappingNode,
    Node,
    ScalarNode,
    SequenceNode,
    show,
)

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_NUMBER_LIKE: Final = re.compile(r"[-+.0-9A-Za-z_]+")
_PLAIN_TEXT: Final = re.compile(r'[^"\\\x00-\x1f]*')
_ESCAPES: Final = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_HEX4: Final = re.compile(r"[0-9A-Fa-f]{4}")
_WORDS: Final[dict[str, bool | float | None]] = {
    "true": True,
    "false": False,
    "null": None,
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "-Infinity": float("-inf"),
}
_ADVICE: Final = {
    "/": "JSON has no comments; write the policy in YAML to keep them",
    "#": "JSON has no comments; write the policy in YAML to keep them",
    "'": "JSON puts text in double quotes",
    "None": "JSON writes null",
    "True": "JSON writes true",
    "False": "JSON writes false",
}


class _Frame:
    """A list or mapping whose end has not been read."""

    __slots__ = ("entries", "items", "key", "keys", "location")

    def __init__(self, location: Location, is_mapping: bool) -> None:
        self.location = location
        self.items: list[Node] = []
        self.entries: list[Entry] = []
        self.keys: dict[str, Location] | None = {} if is_mapping else None
        self.key: ScalarNode | None = None

    def add(self, node: Node) -> None:
        if self.key is not None:
            self.entries.append(Entry(self.key, node))
            self.key = None
        else:
            self.items.append(node)

    def node(self) -> Node:
        if self.keys is None:
            return SequenceNode(tuple(self.items), self.location)
        return MappingNode(tuple(self.entries), self.location)


class _Reader:
    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self.position = 0
        self._lines = [0, *(match.end() for match in re.finditer(r"\r\n?|\n", text))]

    def location(self, position: int) -> Location:
        line = bisect_right(self._lines, position)
        return Location(self.file, line, position - self._lines[line - 1] + 1)

    def fail(self, position: int, message: str) -> NoReturn:
        raise PolicyError([Problem(self.location(position), message)])

    def unexpected(self, expected: str) -> NoReturn:
        """Say what stands at the present position instead of what was expected."""
        rest = self.text[self.position : self.position + MOST_DIGITS]
        if not rest:
            self.fail(self.position, f"the text ends where {expected} was expected")
        word = _NUMBER_LIKE.match(rest)
        found = word[0] if word else rest[0]
        advice = _ADVICE.get(found, "")
        self.fail(self.position, f"expected {expected}, found {show(found)}{advice and '; ' + advice}")

    def peek(self) -> str:
        """The next character that is no white space; empty at the end."""
        match = _SPACE.match(self.text, self.position)
        assert match is not None  # It matches the empty string too.
        self.position = match.end()
        return self.text[self.position : self.position + 1]

    def read(self) -> Node:
        stack: list[_Frame] = []
        weight = 0
        self.peek()
        while True:
            node = self._value_or_opening(stack)
            weight += node.weight if isinstance(node, ScalarNode) else 1
            if weight > MOST_WEIGHT:
                self.fail(self.position, "the document is larger than any policy: it has too many values")
            if isinstance(node, _Frame):
                continue
            while True:  # The value is complete; so may be the lists and mappings around it.
                if not stack:
                    if self.peek():
                        self.unexpected("the end of the text")
                    return node
                stack[-1].add(node)
                if self._goes_on(stack[-1]):
                    break
                node = stack.pop().node()

    def _value_or_opening(self, stack: list[_Frame]) -> Node | _Frame:
        character = self.peek()
        if character in ("{", "["):
            frame = _Frame(self.location(self.position), character == "{")
            if len(stack) == MOST_DEPTH:
                self.fail(self.position, f"lists and mappings nest more than {MOST_DEPTH} levels deep")
            self.position += 1
            if self.peek() == ("}" if character == "{" else "]"):
                self.position += 1
                return frame.node()
            stack.append(frame)
            if character == "{":
                self._key(frame)
            return frame
        return self._scalar()

    def _goes_on(self, frame: _Frame) -> bool:
        """Step over a comma (and the key after it) and return True, or over the closing bracket and return False."""
        closing = "]" if frame.keys is None else "}"
        character = self.peek()
        if character == closing:
            self.position += 1
            return False
        if character != ",":
            self.unexpected(f"',' or {closing!r}")
        comma = self.position
        self.position += 1
        if self.peek() == closing:
            self.fail(comma, f"a comma before the closing {closing!r}, where JSON has none")
        if frame.keys is not None:
            self._key(frame)
        return True

    def _key(self, frame: _Frame) -> None:
        if self.peek() != '"':
            self.unexpected("a key in double quotes")
        key = self._text()
        assert frame.keys is not None
        assert isinstance(key.value, str)
        first = frame.keys.setdefault(key.value, key.location)
        if first is not key.location:
            raise PolicyError([Problem(key.location, f"the key {show(key.value)} stands in line {first.line} too")])
        if self.peek() != ":":
            self.unexpected("':' after the key")
        self.position += 1
        frame.key = key

    def _scalar(self) -> ScalarNode:
        start = self.position
        if self.text.startswith('"', start):
            return self._text()
        word = _NUMBER_LIKE.match(self.text, start)
        if word is None:
            self.unexpected("a value")
        written = word[0]
        if written in _WORDS:
            value = _WORDS[written]
        else:
            number = _NUMBER.fullmatch(written)
            if number is None:
                self.unexpected("a value")
            if len(written) > MOST_DIGITS:
                self.fail(start, f"a number of {len(written)} characters")
            value = float(written) if number[1] or number[2] else int(written)
        self.position = word.end()
        return ScalarNode(value, self.location(start), written)

    def _text(self) -> ScalarNode:
        """The text that begins with the quote at the present position."""
        text, start = self.text, self.position
        pieces: list[str] = []
        position = start + 1
        while True:
            run = _PLAIN_TEXT.match(text, position)
            assert run is not None  # It matches the empty string too.
            pieces.append(run[0])
            position = run.end()
            end = text[position : position + 1]
            if end == '"':
                break
            if end != "\\":
                what = f"the character {end!r}, which JSON writes as an escape" if end else "the end of the text"
                self.fail(start if end in ("", "\n", "\r") else position, f"text in double quotes meets {what}")
            character, position = self._escape(position)
            pieces.append(character)
        self.position = position + 1
        value = "".join(pieces)
        return ScalarNode(value, self.location(start), offset=1 if len(value) == position - start - 1 else None)

    def _escape(self, position: int) -> tuple[str, int]:
        """The character that the escape at `position` stands for, and where the text goes on."""
        letter = self.text[position + 1 : position + 2]
        if letter in _ESCAPES:
            return _ESCAPES[letter], position + 2
        if letter != "u":
            shown = "\\" + show(letter)[1:-1]
            self.fail(position, f"unknown escape {shown}; a backslash in JSON text is written \\\\")
        code, after = self._hexadecimal(position)
        if 0xD800 <= code < 0xDC00 and self.text.startswith("\\u", after):
            low, end = self._hexadecimal(after)
            if 0xDC00 <= low < 0xE000:
                return chr(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)), end
        if 0xD800 <= code < 0xE000:
            self.fail(position, f"the escape \\u{code:04x} is half of a character (an unpaired surrogate)")
        return chr(code), after

    def _hexadecimal(self, position: int) -> tuple[int, int]:
        digits = _HEX4.match(self.text, position + 2)
        if digits is None:
            self.fail(position, "the escape \\u takes four hexadecimal digits")
        return int(digits[0], 16), digits.end()


def read_json(text: str, file: str) -> Node:
    """Read one JSON document. `file` is what locations call it.

    Raises:
        PolicyError: the text is not JSON, repeats a key, or is larger or deeper than any policy.
    """
    return _Reader(text, file).read()
