"""JSON text: strict, with places; never read as YAML."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyquant.errors import Location, PolicyError
from policyquant.policy.document import MappingNode, ScalarNode, SequenceNode, plain
from policyquant.policy.json_reader import read_json
from policyquant.policy.load import load_policy

DATA = Path("tests/data/policies")


def test_every_key_and_value_has_its_place() -> None:
    node = read_json('{\r\n\t"layers": {"*.mlp": "fp8"},\n "é": [1, "a\\n"]}', "policy.json")
    assert isinstance(node, MappingNode)
    layers, accented = node.entries
    assert layers.key == ScalarNode("layers", Location("policy.json", 2, 2), offset=1)
    assert isinstance(layers.value, MappingNode)
    assert layers.value.location == Location("policy.json", 2, 12)
    assert layers.value.entries[0].value == ScalarNode("fp8", Location("policy.json", 2, 22), offset=1)
    assert isinstance(accented.value, SequenceNode)
    assert accented.value.items == (
        ScalarNode(1, Location("policy.json", 3, 8), "1"),
        ScalarNode("a\n", Location("policy.json", 3, 11)),
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e3", 1000.0), ("-0.5", -0.5), ("\t[1,\t2]", [1, 2]), ('"no"', "no"), ("null", None), ("[]", []), ("{}", {}),
     ('"\\ud83d\\ude00"', "😀"), ("true", True)],
)  # fmt: skip
def test_values(text: str, value: Any) -> None:
    assert plain(read_json(text, "policy.json")) == value


REFUSED = [
    ('{"a": fp8}', 1, 7, "expected a value, found 'fp8'"),
    ('{"a": None}', 1, 7, "JSON writes null"),
    ("{'a': 1}", 1, 2, "expected a key in double quotes, found \"'\"; JSON puts text in double quotes"),
    ('{a: 1}', 1, 2, "expected a key in double quotes, found 'a'"),
    ('{"a": 1,}', 1, 8, "a comma before the closing '}'"),
    ("[1,\n2,\n]", 2, 2, "a comma before the closing ']'"),
    ("[1 2]", 1, 4, "expected ',' or ']', found '2'"),
    ("[1}", 1, 3, "expected ',' or ']', found '}'"),
    ('{"a" 1}', 1, 6, "expected ':' after the key, found '1'"),
    ('{"a": 1', 1, 8, "the text ends where ',' or '}' was expected"),
    ("[", 1, 2, "the text ends where a value was expected"),
    ("{} {}", 1, 4, "expected the end of the text, found '{'"),
    ("// why\n{}", 1, 1, "JSON has no comments; write the policy in YAML to keep them"),
    ('{"a": 1 # why\n}', 1, 9, "JSON has no comments; write the policy in YAML to keep them"),
    ('{"a": 1,\n "b": 2,\n "a": 3}', 3, 2, "the key 'a' stands in line 1 too"),
    ("[01]", 1, 2, "expected a value, found '01'"),
    ("[1.]", 1, 2, "expected a value, found '1.'"),
    ("[+1]", 1, 2, "expected a value, found '+1'"),
    ('["a\\.b"]', 1, 4, "unknown escape \\.; a backslash in JSON text is written \\\\"),
    ('["\\u12g4"]', 1, 3, "four hexadecimal digits"),
    ('["\\ud800"]', 1, 3, "half of a character"),
    ('["\\ud800\\u0041"]', 1, 3, "half of a character"),
    ('["\\udc00"]', 1, 3, "half of a character"),
    ('["a\nb"]', 1, 2, "text in double quotes meets the character '\\n'"),
    ('["a\tb"]', 1, 4, "text in double quotes meets the character '\\t'"),
    ('["a', 1, 2, "text in double quotes meets the end of the text"),
    ("[" * 101, 1, 101, "nest more than 100 levels deep"),
    ('{"a":' * 101, 1, 501, "nest more than 100 levels deep"),
    ("[" + "9" * 500 + "]", 1, 2, "a number of 500 characters"),
    ("[" + ",".join([f'"{"x" * 32_000}"'] * 600) + "]", 1, 16_001_501, "too many values"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "column", "says"), REFUSED, ids=[repr(case[0][:30]) for case in REFUSED])
def test_what_is_refused(text: str, line: int, column: int, says: str) -> None:
    with pytest.raises(PolicyError) as caught:
        read_json(text, "policy.json")
    (problem,) = caught.value.problems
    assert problem.location == Location("policy.json", line, column)
    assert says in problem.message


# Half characters (lone surrogates) are refused; the standard library lets them through.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


@given(json_values, st.booleans(), st.sampled_from([None, 2, "\t"]))
def test_reads_what_the_standard_library_writes(value: Any, ascii_only: bool, indent: int | str | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert plain(read_json(text, "policy.json")) == value


@given(st.text(st.sampled_from(list('{}[]:,"\\/ \n\t0123-+.eEuntrfalsb#')), max_size=30))
def test_accepts_what_the_standard_library_accepts(text: str) -> None:
    try:
        expected = json.loads(text, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError):
        with pytest.raises(PolicyError):
            read_json(text, "policy.json")
    else:
        assert plain(read_json(text, "policy.json")) == expected


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a duplicate key")
    return dict(pairs)


def test_non_finite_numbers_are_read_where_other_tools_write_them() -> None:
    values = plain(read_json("[NaN, Infinity, -Infinity]", "config.json"))
    assert isinstance(values, list)
    assert math.isnan(values[0])
    assert values[1:] == [math.inf, -math.inf]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_non_finite_numbers_are_refused_inside_of_a_policy(tmp_path: Path, number: str) -> None:
    path = tmp_path / "policy.json"
    path.write_text(f'{{"layers": {{"a": {{"input": {{"scale": {number}}}}}}}}}')
    with pytest.raises(
        PolicyError, match=f"1:38: `scale`: expected a finite number above 0, found the number {number}"
    ):
        load_policy(path)


def test_the_same_document_in_json_says_the_same() -> None:
    in_yaml, in_json = load_policy(DATA / "design.yaml"), load_policy(DATA / "design.json")
    assert [(rule.text, rule.fields) for rule in in_json.rules] == [(rule.text, rule.fields) for rule in in_yaml.rules]
    assert [each.fields for each in in_json.expected_layers] == [each.fields for each in in_yaml.expected_layers]
    assert in_json.expected_bits[0].limit == in_yaml.expected_bits[0].limit
