"""What the JSON Schema finds wrong with a policy that our own checker refused, in people's words.

The checker says more and says it better; this is the net under it. jsonschema is imported here and nowhere else, and
only after a policy was refused, because importing it takes longer than reading a policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from policyquant.errors import Location, did_you_mean
from policyquant.policy.document import (
    Entry,
    MappingNode,
    Node,
    ScalarNode,
    SequenceNode,
    describe,
    plain,
    shorten,
    show,
)
from policyquant.policy.methods import METHODS
from policyquant.policy.problems import Problems

_MOST_NODES: Final = 5_000
"""The schema takes about a millisecond for ten nodes; the net is for policies that people write."""

_TYPES: Final = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "a whole number",
    "null": "null",
    "number": "a number",
    "object": "a mapping",
    "string": "text",
}


def add_from_schema(node: Node, problems: Problems, *, in_config: bool = False) -> None:
    """Add what the schema finds at places where no problem was noted, neither there nor inside."""
    if _size(node, _MOST_NODES) >= _MOST_NODES:
        return
    if in_config and isinstance(node, MappingNode):
        node = node._replace(entries=tuple(entry for entry in node.entries if entry.name != "quant_method"))
    noted = {problem.location for problem in problems.found}
    for path, message in schema_problems(plain(node)):
        key, target = _at(node, path)
        if not any(place in noted for place in (key, *_places(target))):
            problems.add(target.location, message)


def schema_problems(data: object) -> list[tuple[tuple[str | int, ...], str]]:
    """What the schema finds wrong with a document: the path to the place, and what is wrong there."""
    from jsonschema import Draft202012Validator

    errors = Draft202012Validator(_schema()).iter_errors(data)
    return [(tuple(leaf.absolute_path), _message(leaf)) for error in errors for leaf in _leaves(error)]


def _schema() -> dict[str, Any]:
    """The schema that editors read, and with it the methods that others bring here; none of them is loaded."""
    from policyquant.schemas import policy_schema

    schema = policy_schema()
    brought = [{"const": name} for name in METHODS.names() if name not in {*METHODS}]
    if not brought:
        return schema
    method = schema["$defs"]["method"]
    return {**schema, "$defs": {**schema["$defs"], "method": {**method, "oneOf": [*method["oneOf"], *brought]}}}


def _leaves(error: Any) -> Iterable[Any]:
    """The errors that say something: of a choice, those of the branch that was meant."""
    if error.validator not in ("anyOf", "oneOf") or not error.context:
        yield error
        return
    branches: dict[object, list[Any]] = {}
    for inner in error.context:
        branches.setdefault(inner.relative_schema_path[0], []).append(inner)
    meant = [inners for inners in branches.values() if not any(map(_is_other_thing, inners))]
    if len(meant) != 1:
        yield error
        return
    for inner in meant[0]:
        yield from _leaves(inner)


def _is_other_thing(error: Any) -> bool:
    """Whether a branch of a choice is about another thing than what was written: a word, and a mapping was written."""
    return not error.relative_path and error.validator in ("type", "const", "enum", "oneOf")


def _message(error: Any) -> str:
    """One error in people's words."""
    expected, keyword = error.validator_value, error.validator
    found = describe(_node(error.instance))
    if keyword in ("anyOf", "oneOf"):
        words = list(dict.fromkeys(_choices(expected)))
        hint = did_you_mean(error.instance, words) if isinstance(error.instance, str) else ""
        return f"expected {' or '.join(words) or 'something else'}, found {found}{hint}"
    if keyword == "type":
        types = expected if isinstance(expected, list) else [expected]
        return f"expected {' or '.join(_TYPES[each] for each in types)}, found {found}"
    if keyword in ("enum", "const"):
        known = [str(each) for each in (expected if keyword == "enum" else [expected])]
        hint = did_you_mean(error.instance, known) if isinstance(error.instance, str) else ""
        return f"expected {' or '.join(known)}, found {found}{hint}"
    if keyword == "additionalProperties":
        known = list(error.schema.get("properties", {}))
        unknown = [key for key in error.instance if key not in known]
        return (
            f"unknown key {', '.join(map(show, unknown))}{did_you_mean(unknown[0], known)} (known: {', '.join(known)})"
        )
    if keyword == "required":
        return f"`{expected[0]}` is missing"
    if keyword == "dependentRequired":
        return "; ".join(
            f"`{key}` needs {', '.join(needs)}" for key, needs in expected.items() if key in error.instance
        )
    if keyword in ("minItems", "minLength", "minProperties"):
        return f"expected at least {expected}, found {found}"
    if keyword == "maxItems":
        return f"expected at most {expected}, found {found}"
    if keyword in ("minimum", "exclusiveMinimum"):
        return f"expected a number {'from' if keyword == 'minimum' else 'above'} {expected}, found {found}"
    description = error.schema.get("description") if isinstance(error.schema, dict) else None
    return f"{found} does not belong here{'; expected: ' + description if description else ''}"


def _node(value: Any) -> Node:
    """Enough of a node to describe a value."""
    nowhere = Location("")
    if isinstance(value, dict):
        return MappingNode(tuple(Entry(ScalarNode(key, nowhere), ScalarNode(None, nowhere)) for key in value), nowhere)
    if isinstance(value, list):
        return SequenceNode(tuple(ScalarNode(None, nowhere) for _ in value), nowhere)
    return ScalarNode(value, nowhere, "" if isinstance(value, str) else shorten(str(value).lower()))


def _choices(branches: Sequence[Any]) -> Iterable[str]:
    """What the branches of a choice take, for people."""
    for branch in branches:
        if "$ref" in branch:
            yield from _choices([_schema()["$defs"][branch["$ref"].rpartition("/")[2]]])
        elif "oneOf" in branch or "anyOf" in branch:
            yield from _choices(branch.get("oneOf") or branch["anyOf"])
        elif "const" in branch:
            yield str(branch["const"])
        elif "enum" in branch:
            yield from map(str, branch["enum"])
        elif "type" in branch:
            yield _TYPES[branch["type"]]
        elif "required" in branch:
            yield f"`{branch['required'][0]}`"


def _at(node: Node, path: Iterable[str | int]) -> tuple[Location, Node]:
    """The place of the key (or list item) at a path, and its value."""
    key = node.location
    for step in path:
        if isinstance(node, MappingNode):
            entry = next(entry for entry in node.entries if entry.name == step)
            key, node = entry.key.location, entry.value
        elif isinstance(node, SequenceNode) and isinstance(step, int):
            node = node.items[step]
            key = node.location
    return key, node


def _places(node: Node) -> Iterable[Location]:
    """The places of a node and of everything inside of it, keys included."""
    yield node.location
    if isinstance(node, SequenceNode):
        for item in node.items:
            yield from _places(item)
    elif isinstance(node, MappingNode):
        for entry in node.entries:
            yield entry.key.location
            yield from _places(entry.value)


def _size(node: Node, most: int) -> int:
    """How many nodes there are, counted up to `most`."""
    count, open_nodes = 0, [node]
    while open_nodes and count < most:
        inner = open_nodes.pop()
        count += 1
        if isinstance(inner, SequenceNode):
            open_nodes.extend(inner.items)
        elif isinstance(inner, MappingNode):
            open_nodes.extend(entry.value for entry in inner.entries)
    return count
