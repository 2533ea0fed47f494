"""Nodes of one document → its rules, defaults and expectations, or every problem that it has.

This is the checker that runs on each load; `schemas/policy.schema.json` says the same to editors. What a document
extends is merged by `load`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from policyquant.errors import Location
from policyquant.inventory.kinds import KINDS, Kind
from policyquant.policy import values
from policyquant.policy.document import Entry, MappingNode, Node, ScalarNode, SequenceNode, describe, shorten, show
from policyquant.policy.methods import METHODS
from policyquant.policy.patterns import Pattern, PatternError
from policyquant.policy.policy import BitsExpectation, Default, LayerExpectation, Origin, Rule, SchemeFields
from policyquant.policy.problems import Problems
from policyquant.policy.scheme_fields import SCHEME_KEYS, read_scheme, scheme_of, unknown_key

VERSION: Final = 1

DOCUMENT_KEYS: Final = (
    "version",
    "$schema",
    "description",
    "extends",
    "default",
    "protect",
    "layers",
    "groups",
    "untie",
    "expect",
)
RULE_KEYS: Final = ("match", "kind", "optional", *SCHEME_KEYS)
EXPECT_KEYS: Final = ("layers", "bits_per_weight")

MOST_ALTERNATIVES: Final = 100_000
"""Of all patterns together: about a second of work and 50 MB. One pattern alone may have 10,000."""

_COMPARISON: Final = re.compile(r"\s*(<=|<|>=|>|==)\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*")
"""What `bits_per_weight` reads like."""


@dataclass(frozen=True, slots=True)
class Document:
    """What one file says, before what it extends is merged in."""

    extends: tuple[ScalarNode, ...] = ()
    default: Default | None = None
    protect: frozenset[Kind] | None = None
    protect_location: Location | None = None
    rules: tuple[Rule, ...] = ()
    groups: tuple[tuple[Pattern, ...], ...] = ()
    groups_locations: tuple[Location, ...] = ()
    expected_layers: tuple[LayerExpectation, ...] = ()
    expected_bits: tuple[BitsExpectation, ...] = ()
    untie: bool | None = None


def check(node: Node, problems: Problems, *, origin: Origin = "own", in_config: bool = False) -> Document:
    """Read one document. Problems are noted; what is returned is of use only if there are none.

    Args:
        node: the document.
        problems: where problems are put.
        origin: who wrote its rules.
        in_config: it stands in a `config.json`, where tools sort the keys of a mapping, so `layers` must be a list.
    """
    if not isinstance(node, MappingNode):
        problems.add(node.location, f"a policy is a mapping with keys such as `layers`, found {describe(node)}")
        return Document()
    other = _other_document(node)
    if other is not None:
        problems.add(node.location, f"{other}, where a policy is expected")
        problems.raise_if_any()  # Whatever else were said of it would be said as if it were a policy.
    known = (*DOCUMENT_KEYS, "quant_method") if in_config else DOCUMENT_KEYS
    found: dict[str, Entry] = {}
    for entry in node.entries:
        if entry.name in known:
            found[entry.name] = entry
        else:
            _unknown_key(entry, DOCUMENT_KEYS, problems, "key of a policy")

    def value(name: str) -> Node | None:
        return found[name].value if name in found else None

    _check_version(value("version"), problems)
    for name in ("$schema", "description"):
        if (node_of := value(name)) is not None:
            values.text(node_of, name, problems)
    protect = value("protect")
    groups, groups_locations = _groups(value("groups"), problems)
    expected_layers, expected_bits = _expect(value("expect"), problems)
    untie = value("untie")
    return Document(
        _extends(value("extends"), problems),
        _default(value("default"), problems),
        None if protect is None else _protect(protect, problems),
        None if protect is None else found["protect"].key.location,
        _layers(value("layers"), origin, in_config, problems),
        groups,
        groups_locations,
        expected_layers,
        expected_bits,
        None if untie is None else values.truth(untie, "untie", problems),
    )


_PLAN_KEYS: Final = ("generator", "policy", "layers")
"""By these a plan is told: the first two are no keys of a policy."""


def _other_document(node: MappingNode) -> str | None:
    """What else of ours, or of a model, a document is."""
    if all(node.get(key) is not None for key in _PLAN_KEYS):
        return "a plan"
    kind = node.get("format")
    if isinstance(kind, ScalarNode) and kind.value == "policyquant-inventory":
        return "a saved inventory"
    return "the index of a model" if isinstance(node.get("weight_map"), MappingNode) else None


_LEAVES_OUT: Final = frozenset(
    {
        "exclude",
        "exclude_layers",
        "exclude_modules",
        "excluded_layers",
        "ignore",
        "ignored_layers",
        "ignored_modules",
        "llm_int8_skip_modules",
        "modules_to_not_convert",
        "modules_to_not_quantize",
        "skip",
        "skip_layers",
        "skip_modules",
    }
)
"""Keys under which other tools list layers that stay as they are."""


def _unknown_key(entry: Entry, known: tuple[str, ...], problems: Problems, what: str) -> None:
    """As `unknown_key`; a key that lists what to leave out in another tool is told what does so here."""
    if entry.name not in _LEAVES_OUT:
        unknown_key(entry, known, problems, what)
        return
    value = entry.value
    first = value.items[0] if isinstance(value, SequenceNode) and value.items else value
    pattern = shorten(first.value) if isinstance(first, ScalarNode) and isinstance(first.value, str) else "*.o_proj"
    rule = f"`{json.dumps(pattern, ensure_ascii=False)}: none`"
    problems.unknown(entry.key, what, known, f"; leave layers out with a later rule in `layers`: {rule}")


def _check_version(node: Node | None, problems: Problems) -> None:
    if node is None:
        return
    value = node.value if isinstance(node, ScalarNode) else None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if value != VERSION:
            problems.add(node.location, f"`version`: this policyquant reads version {VERSION}, found {describe(node)}")
    else:
        values.wrong(node, "version", f"the number {VERSION}", problems)


def _extends(node: Node | None, problems: Problems) -> tuple[ScalarNode, ...]:
    if node is None:
        return ()
    names = []
    for item in node.items if isinstance(node, SequenceNode) else (node,):
        if isinstance(item, ScalarNode) and isinstance(item.value, str) and item.value:
            names.append(item)
        else:
            values.wrong(item, "extends", "a preset's name, a path, or a list of them", problems)
    return tuple(names)


def _default(node: Node | None, problems: Problems) -> Default | None:
    if node is None:
        return None
    fields = read_scheme(node, "default", problems)
    if isinstance(node, MappingNode) and node.get("method") is None:
        for side in ("weight", "input"):
            if node.get(side) is not None:
                problems.add(
                    node.location, f"`default`: `{side}` needs a `method`, since nothing stands before a default"
                )
    return Default(fields, node.location)


def _protect(node: Node, problems: Problems) -> frozenset[Kind]:
    if not isinstance(node, SequenceNode):
        values.wrong(node, "protect", "a list of kinds such as [head, embedding, router], or [] for none", problems)
        return frozenset()
    return frozenset(_kind(item, "protect", problems) for item in node.items)


_KIND: Final = values.one_of(*KINDS)


def _kind(node: Node, name: str, problems: Problems) -> Kind:
    # A wrong word is noted, and then anything will do.
    return _KIND(node, name, problems) or "other"  # type: ignore[return-value]  # the reader returns one of KINDS


def _kinds(node: Node, problems: Problems) -> frozenset[Kind]:
    items = node.items if isinstance(node, SequenceNode) else (node,)
    if not items:
        problems.add(node.location, "`kind`: expected a kind or a list of kinds, found an empty list")
    return frozenset(_kind(item, "kind", problems) for item in items)


def _pattern(node: Node, name: str, problems: Problems) -> Pattern | None:
    if not isinstance(node, ScalarNode) or not isinstance(node.value, str):
        advice = "; put it in quotes" if isinstance(node, ScalarNode) and node.written else ""
        values.wrong(node, name, "a pattern", problems, advice)
        return None
    try:
        pattern = Pattern.compile(node.value)
    except PatternError as error:
        location = node.location
        if node.offset is not None and location.column is not None:
            location = location._replace(column=location.column + node.offset + error.offset)
        problems.add(location, f"pattern {show(node.value)}: {error}")
        return None
    problems.alternatives += len(pattern.branches)
    if problems.alternatives > MOST_ALTERNATIVES:
        problems.add(node.location, f"the patterns of this policy have more than {MOST_ALTERNATIVES:,} alternatives")
        problems.raise_if_any()
    return pattern


def _patterns(node: Node, name: str, problems: Problems) -> tuple[Pattern, ...]:
    """One pattern or a list of them."""
    if isinstance(node, MappingNode) or (isinstance(node, SequenceNode) and not node.items):
        values.wrong(node, name, "a pattern or a list of patterns", problems)
        return ()
    items = node.items if isinstance(node, SequenceNode) else (node,)
    compiled = (_pattern(item, name, problems) for item in items)
    return tuple(pattern for pattern in compiled if pattern is not None)


def _layers(node: Node | None, origin: Origin, in_config: bool, problems: Problems) -> tuple[Rule, ...]:
    if node is None:
        return ()
    if isinstance(node, SequenceNode):
        return tuple(_rule(item, origin, problems) for item in node.items)
    if not isinstance(node, MappingNode):
        values.wrong(node, "layers", "a mapping of patterns to schemes, or a list of rules", problems)
        return ()
    if in_config:
        problems.add(
            node.location,
            '`layers`: inside a config.json rules must be a list, [{"match": pattern, "method": …}, …], because tools'
            " sort the keys of a mapping and the order of rules decides",
        )
        return ()
    rules = []
    for entry in node.entries:
        pattern = _pattern(entry.key, "layers", problems)
        fields = read_scheme(entry.value, shorten(entry.name), problems)
        if pattern is not None:
            rules.append(Rule((pattern,), None, fields, entry.key.location, origin))
    return tuple(rules)


def _rule(node: Node, origin: Origin, problems: Problems) -> Rule:
    nothing = Rule((), None, SchemeFields(), node.location, origin)
    if not isinstance(node, MappingNode):
        values.wrong(node, "layers", "a rule such as {match: pattern, method: fp8}", problems)
        return nothing
    if _is_pattern_with_scheme(node):
        (entry,) = node.entries
        pattern, method = json.dumps(shorten(entry.name), ensure_ascii=False), ""
        if isinstance(entry.value, ScalarNode) and isinstance(entry.value.value, str):
            method = shorten(entry.value.value)
        problems.add(
            entry.key.location,
            f"a rule of a list says what it is by keys: write {{match: {pattern}, method: {method or '…'}}}, or leave"
            " out the `-` of every rule",
        )
        return nothing
    found: dict[str, Entry] = {}
    for entry in node.entries:
        if entry.name in RULE_KEYS:
            found[entry.name] = entry
        else:
            _unknown_key(entry, RULE_KEYS, problems, "key of a rule")
    if "match" not in found and "kind" not in found:
        problems.add(node.location, "a rule needs `match` or `kind` to say which layers it reaches")
        if not found:
            return nothing
    return Rule(
        _patterns(found["match"].value, "match", problems) if "match" in found else (),
        _kinds(found["kind"].value, problems) if "kind" in found else None,
        scheme_of(node, RULE_KEYS, problems),
        node.location,
        origin,
        _optional(found.get("optional"), problems),
    )


def _is_pattern_with_scheme(node: MappingNode) -> bool:
    """`- "*.mlp": fp8`: what stands in a mapping of rules, as an item of a list."""
    if len(node.entries) != 1 or node.entries[0].name in (*RULE_KEYS, *_LEAVES_OUT):
        return False
    (entry,) = node.entries
    is_method = isinstance(entry.value, ScalarNode) and entry.value.value in METHODS
    return is_method or any(character in entry.name for character in "*.{}?[")


def _optional(entry: Entry | None, problems: Problems) -> bool:
    return entry is not None and bool(values.truth(entry.value, "optional", problems))


def _groups(node: Node | None, problems: Problems) -> tuple[tuple[tuple[Pattern, ...], ...], tuple[Location, ...]]:
    if node is None:
        return (), ()
    if not isinstance(node, SequenceNode):
        values.wrong(node, "groups", "a list of lists of patterns", problems)
        return (), ()
    groups = []
    for item in node.items:
        if isinstance(item, SequenceNode):
            groups.append((_patterns(item, "groups", problems), item.location))
        else:
            values.wrong(item, "groups", "a list of patterns", problems)
    return tuple(patterns for patterns, _ in groups), tuple(location for _, location in groups)


def _expect(node: Node | None, problems: Problems) -> tuple[tuple[LayerExpectation, ...], tuple[BitsExpectation, ...]]:
    if node is None:
        return (), ()
    if not isinstance(node, MappingNode):
        values.wrong(node, "expect", f"a mapping of {' and '.join(EXPECT_KEYS)}", problems)
        return (), ()
    layers: tuple[LayerExpectation, ...] = ()
    bits: tuple[BitsExpectation, ...] = ()
    for entry in node.entries:
        if entry.name == "layers":
            layers = _expected_layers(entry.value, problems)
        elif entry.name == "bits_per_weight":
            items = entry.value.items if isinstance(entry.value, SequenceNode) else (entry.value,)
            found = (_bits(item, problems) for item in items)
            bits = tuple(expectation for expectation in found if expectation is not None)
        else:
            unknown_key(entry, EXPECT_KEYS, problems, "key of `expect`")
    return layers, bits


def _expected_layers(node: Node, problems: Problems) -> tuple[LayerExpectation, ...]:
    if not isinstance(node, MappingNode):
        values.wrong(node, "layers", "a mapping of patterns to schemes", problems)
        return ()
    expectations = []
    for entry in node.entries:
        pattern = _pattern(entry.key, "expect", problems)
        optional = False
        scheme = entry.value
        if isinstance(scheme, MappingNode):
            by_name: Mapping[str, Entry] = {each.name: each for each in scheme.entries}
            optional = _optional(by_name.get("optional"), problems)
            scheme = scheme._replace(entries=tuple(each for each in scheme.entries if each.name != "optional"))
        fields = read_scheme(scheme, shorten(entry.name), problems)
        if pattern is not None:
            expectations.append(LayerExpectation(pattern, fields, entry.key.location, optional))
    return tuple(expectations)


def _bits(node: Node, problems: Problems) -> BitsExpectation | None:
    match = _COMPARISON.fullmatch(node.value) if isinstance(node, ScalarNode) and isinstance(node.value, str) else None
    if match is None:
        values.wrong(node, "bits_per_weight", 'a comparison and a number in quotes such as "<= 11.5"', problems)
        return None
    return BitsExpectation(match[1], float(match[2]), node.location)  # type: ignore[arg-type]  # one of the five
