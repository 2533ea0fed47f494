"""YAML text → nodes with places.

Works on the parser's events, so nothing recurses and no Python object is ever built from a tag. Plain scalars mean what
YAML 1.1 says (`no` is false, `~` is null, `1e3` is text), because that is what other tools make of the same file. What
a policy has no use for is refused with advice: tags, merge keys, several documents, keys that are not text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, NoReturn

import yaml

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
    describe,
    is_text,
    shorten,
    show,
)
from policyquant.policy.yaml_advice import explain, quoted_pattern

_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_RESOLVERS: Final = yaml.SafeLoader.yaml_implicit_resolvers
_CONSTRUCTOR: Final = yaml.constructor.SafeConstructor()
_VALUES: Final[dict[str, Callable[[yaml.ScalarNode], Any]]] = {
    "tag:yaml.org,2002:bool": _CONSTRUCTOR.construct_yaml_bool,
    "tag:yaml.org,2002:int": _CONSTRUCTOR.construct_yaml_int,
    "tag:yaml.org,2002:float": _CONSTRUCTOR.construct_yaml_float,
    "tag:yaml.org,2002:null": _CONSTRUCTOR.construct_yaml_null,
}
"""What else a plain scalar may mean (dates, `=`) is text to a policy."""


class _Anchored(NamedTuple):
    node: Node
    weight: int
    height: int


@dataclass(slots=True)
class _Frame:
    """A list or mapping whose end has not been read."""

    location: Location
    is_mapping: bool
    anchor: str | None
    in_brackets: bool
    items: list[Node] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    keys: dict[str, Location] = field(default_factory=dict)
    key: ScalarNode | None = None
    weight: int = 1
    height: int = 1

    @property
    def wants_key(self) -> bool:
        return self.is_mapping and self.key is None

    def node(self) -> Node:
        if self.is_mapping:
            return MappingNode(tuple(self.entries), self.location)
        return SequenceNode(tuple(self.items), self.location)


class _Reader:
    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self.stack: list[_Frame] = []
        self.anchors: dict[str, _Anchored] = {}
        self.weight = 0
        self.root: Node | None = None

    def location(self, mark: Any) -> Location:
        return Location(self.file, mark.line + 1, mark.column + 1)

    def fail(self, location: Location, message: str) -> NoReturn:
        raise PolicyError([Problem(location, message)])

    def read(self) -> Node | None:
        documents = 0
        for event in self._events():
            if isinstance(event, yaml.ScalarEvent):
                node = self._scalar(event)
                self._emit(node, node.weight, 0)
                if event.anchor:
                    self.anchors[event.anchor] = _Anchored(node, node.weight, 0)
            elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
                self._open(event)
            elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
                self._close()
            elif isinstance(event, yaml.AliasEvent):
                self._alias(event)
            elif isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents == 2:
                    self.fail(
                        self.location(event.start_mark), "a second YAML document begins; a policy is one document"
                    )
        return self.root

    def _events(self) -> Iterator[Any]:
        try:
            yield from yaml.parse(self.text, Loader=_LOADER)
        except yaml.YAMLError as error:
            place, message = explain(error, self.text, self._unclosed())
            raise PolicyError([Problem(Location(self.file, *place), message)]) from None

    def _unclosed(self) -> tuple[str, tuple[int, int]] | None:
        for frame in reversed(self.stack):
            if frame.in_brackets:
                return "{" if frame.is_mapping else "[", (frame.location.line or 0, frame.location.column or 0)
        return None

    def _open(self, event: Any) -> None:
        location = self.location(event.start_mark)
        self._refuse_tag(event, location)
        is_mapping = isinstance(event, yaml.MappingStartEvent)
        if self.stack and self.stack[-1].wants_key:
            if event.flow_style:
                bracket = "{" if is_mapping else "["
                self.fail(location, f"a pattern that begins with `{bracket}` must be in quotes")
            self.fail(location, f"a key must be text, found {'a mapping' if is_mapping else 'a list'}")
        if len(self.stack) == MOST_DEPTH:
            self.fail(location, f"lists and mappings nest more than {MOST_DEPTH} levels deep")
        if event.anchor:
            self.anchors.pop(event.anchor, None)  # Until it is complete, an alias to it means itself.
        self._count(1, location)
        self.stack.append(_Frame(location, is_mapping, event.anchor, bool(event.flow_style)))

    def _close(self) -> None:
        frame = self.stack.pop()
        node = frame.node()
        if frame.anchor:
            self.anchors[frame.anchor] = _Anchored(node, frame.weight, frame.height)
        self._add(node, frame.weight, frame.height)

    def _alias(self, event: Any) -> None:
        location = self.location(event.start_mark)
        name = event.anchor
        if name not in self.anchors:
            if any(frame.anchor == name for frame in self.stack):
                self.fail(location, f"the alias *{shorten(name)} stands inside of what it repeats")
            written = quoted_pattern(self.text, event.start_mark.index)
            self.fail(
                location,
                f"YAML reads `*{shorten(name)}` as an alias, and nothing is named &{shorten(name)}; "
                f"a pattern that begins with `*` must be in quotes: {written}",
            )
        node, weight, height = self.anchors[name]
        if len(self.stack) + height > MOST_DEPTH:
            self.fail(location, f"lists and mappings nest more than {MOST_DEPTH} levels deep")
        # A rule stands where the alias stands; what is inside of it stands where it was written.
        at_alias = (
            node._replace(location=location, offset=None)
            if isinstance(node, ScalarNode)
            else (node._replace(location=location))
        )
        self._emit(at_alias, weight, height)

    def _emit(self, node: Node, weight: int, height: int) -> None:
        self._count(weight, node.location)
        self._add(node, weight, height)

    def _count(self, weight: int, location: Location) -> None:
        self.weight += weight
        if self.weight > MOST_WEIGHT:
            self.fail(location, "the document, its aliases written out, is larger than any policy")

    def _add(self, node: Node, weight: int, height: int) -> None:
        """Put a complete node where it belongs."""
        if not self.stack:
            self.root = node
            return
        frame = self.stack[-1]
        frame.weight += weight
        frame.height = max(frame.height, height + 1)
        if not frame.is_mapping:
            frame.items.append(node)
        elif frame.key is None:
            frame.key = self._key(node, frame)
        else:
            frame.entries.append(Entry(frame.key, node))
            frame.key = None

    def _key(self, node: Node, frame: _Frame) -> ScalarNode:
        if not isinstance(node, ScalarNode):
            self.fail(node.location, f"a key must be text, found {describe(node)}")
        if not isinstance(node.value, str):
            hint = f'; put it in quotes: "{node.written}"' if node.written else ""
            self.fail(node.location, f"a key must be text, found {describe(node)}{hint}")
        if node.value == "<<" and node.offset == 0:
            self.fail(
                node.location, "a merge key `<<`, which a policy does not have; use `extends`, or name a scheme twice"
            )
        first = frame.keys.setdefault(node.value, node.location)
        if first is not node.location:
            self.fail(node.location, f"the key {show(node.value)} stands in line {first.line} too")
        return node

    def _scalar(self, event: Any) -> ScalarNode:
        start, end, text = event.start_mark, event.end_mark, event.value
        location = self.location(start)
        self._refuse_tag(event, location)
        if event.style in (None, ""):
            verbatim = end.index - start.index == len(text)
            value = self._plain_value(text, location)
            if isinstance(value, str):
                return ScalarNode(value, location, offset=0 if verbatim else None)
            return ScalarNode(value, location, text)
        if not is_text(text):  # One of PyYAML's parsers lets an escape through that the other refuses.
            self.fail(location, f"the text {show(text)} holds half of a character (a surrogate)")
        verbatim = event.style in ("'", '"') and end.line == start.line and end.index - start.index == len(text) + 2
        return ScalarNode(text, location, offset=1 if verbatim else None)

    def _plain_value(self, text: str, location: Location) -> str | int | float | bool | None:
        for tag, expression in _RESOLVERS.get(text[:1], ()):
            if tag in _VALUES and expression.match(text):
                if len(text) > MOST_DIGITS:
                    self.fail(location, f"a number of {len(text)} characters")
                try:
                    value: str | int | float | bool | None = _VALUES[tag](yaml.ScalarNode(tag, text))
                except ValueError:
                    self.fail(location, f"{show(text)} looks like a number and is none; put it in quotes if it is text")
                return value
        return text

    def _refuse_tag(self, event: Any, location: Location) -> None:
        if event.tag is not None:
            self.fail(
                location, f"the YAML tag `{shorten(event.tag)}`; a policy has no tags, put text in quotes instead"
            )


def read_yaml(text: str, file: str) -> Node | None:
    """Read one YAML document; None if the text has none. `file` is what locations call it.

    Raises:
        PolicyError: the text is not YAML, has something that a policy does not have, or is larger or deeper than any
            policy, its aliases written out.
    """
    return _Reader(text, file).read()
