"""YAML text: places of what is read, what plain words mean, and advice for what a policy does not have."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from policyquant.errors import Location, PolicyError
from policyquant.policy import yaml_reader
from policyquant.policy.document import MappingNode, ScalarNode, SequenceNode, plain
from policyquant.policy.load import load_policy
from policyquant.policy.yaml_reader import read_yaml


@pytest.fixture(params=["CSafeLoader", "SafeLoader"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both of PyYAML's parsers: the fast one, and the one that is used where that was not built."""
    name: str = request.param
    if not hasattr(yaml, name):
        pytest.skip("PyYAML was built without libyaml")
    monkeypatch.setattr(yaml_reader, "_LOADER", getattr(yaml, name))
    return name


def place_and_message(text: str) -> tuple[int | None, int | None, str]:
    with pytest.raises(PolicyError) as caught:
        read_yaml(text, "policy.yaml")
    (problem,) = caught.value.problems
    assert problem.location.file == "policy.yaml"
    return problem.location.line, problem.location.column, problem.message


def test_every_key_and_value_has_its_place(parser: str) -> None:
    node = read_yaml("layers:\n  \"*.mlp\": {method: fp8}\n  é.x: [a, 'b']\n", "policy.yaml")
    assert isinstance(node, MappingNode)
    layers = node.entries[0].value
    assert isinstance(layers, MappingNode)
    mlp, accented = layers.entries
    assert mlp.key == ScalarNode("*.mlp", Location("policy.yaml", 2, 3), offset=1)
    assert isinstance(mlp.value, MappingNode)
    assert mlp.value.location == Location("policy.yaml", 2, 12)
    assert mlp.value.entries[0].value == ScalarNode("fp8", Location("policy.yaml", 2, 21), offset=0)
    assert accented.key.location == Location("policy.yaml", 3, 3)
    assert isinstance(accented.value, SequenceNode)
    assert [item.location.column for item in accented.value.items] == [9, 12]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("none", "none"),
        ("no", False), ("off", False), ("yes", True), ("on", True), ("True", True), ("y", "y"),
        ("~", None), ("null", None), ("", None),
        ("12", 12), ("0x80", 128), ("1_000", 1000), ("1.5", 1.5), ("1.0e-3", 0.001),
        ("1e-3", "1e-3"),
        ("2001-01-01", "2001-01-01"),
        ("'no'", "no"), ('"12"', "12"), ("'it''s'", "it's"), (r'"\u00e9"', "é"),
        (".inf", math.inf),
    ],
)  # fmt: skip
def test_plain_words_mean_what_yaml_1_1_says(parser: str, written: str, value: Any) -> None:
    node = read_yaml(f"key: {written}\n", "policy.yaml")
    assert plain(node) == {"key": value}  # type: ignore[arg-type]  # not None


REFUSED = [
    # A pattern that begins with an unquoted `*`.
    ("layers:\n  *.qkv_proj: none\n", 2, 3, '"*.qkv_proj"'),
    ("layers:\n  *gate: none\n", 2, 3, '"*gate"'),
    ("layers:\n  *.{q,k}_proj: none  # both\n", 2, 3, '"*.{q,k}_proj"'),
    ("layers:\n  *: fp8\n", 2, 3, '"*"'),
    ("match: [*.a, b]\n", 1, 9, '"*.a"'),
    ("layers: {*.a: fp8}\n", 1, 10, '"*.a"'),
    ("- match: *.mlp\n", 1, 10, '"*.mlp"'),
    # Other patterns that YAML reads as something else.
    ('layers:\n  "ab\\.c": fp8\n', 2, 6, "unknown escape \\. inside double quotes; put a pattern with a"),
    ("{a,b}.x: none\n", 1, 1, "a pattern that begins with `{` must be in quotes"),
    ("'a'.x: none\n", 1, 4, "must be in quotes as a whole"),
    ("? [a, b]\n: none\n", 1, 3, "a pattern that begins with `[` must be in quotes"),
    ("? {a, b}\n: none\n", 1, 3, "a pattern that begins with `{` must be in quotes"),
    ("? - a\n: none\n", 1, 3, "a key must be text, found a list"),
    ("match: [model.{0..3}.mlp]\n", 1, 15, "a pattern in it that has `{`, `}`, `[`, `]` or `,` must be in quotes"),
    ("layers: {a.{b}: fp8}\n", 1, 12, "a pattern in it that has `{`, `}`, `[`, `]` or `,` must be in quotes"),
    ("bits_per_weight: >= 4\n", 1, 18, '`>` begins a block of text in YAML; put the value in quotes: ">= 4"'),
    ("a: %b\n", 1, 4, "a value cannot begin with `%` in YAML; put it in quotes"),
    ("a: @b\n", 1, 4, "a value cannot begin with `@` in YAML; put it in quotes"),
    ("a: `b\n", 1, 4, "a value cannot begin with a backtick in YAML; put it in quotes"),
    ("a: &.b c\n", 1, 4, "text that begins with `&` must be in quotes"),
    ("a:\n\tb: 1\n", 2, 1, "a tab; YAML indents with spaces"),
    # Faults of layout.
    ("a: b: c\n", 1, 5, "a second `key:` in one line, or an indentation that fits no line above"),
    ("a: 1\n b: 2\n", 2, 3, "a second `key:` in one line, or an indentation that fits no line above"),
    ("a: 'b\n", 1, 4, "closing quote is missing"),
    ("a: [1\nb: 2\n", 2, 2, "`,` or `]` was expected"),
    ("a: 1\nb: [1, 2", 2, 4, "`[` is not closed"),
    ("a: 1\nb: {x: 1,\n\n", 2, 4, "`{` is not closed"),
    ("a: 1\nb\n", 2, 1, "a line without `:`; expected `key: value`"),
    ("a: 1\n'b", 2, 1, "closing quote is missing"),
    ("- a\nb: 1\n", 2, 1, ""),
    ("a: \x07\n", 1, 4, "a control character"),
    # What YAML has and a policy has not.
    ("a: !!python/object/apply:os.system [ls]\n", 1, 4, "a policy has no tags"),
    ("a: !!str 3\n", 1, 4, "a policy has no tags"),
    ("a: !x 3\n", 1, 4, "a policy has no tags"),
    ("a: !x!y 3\n", 1, 4, "a policy has no tags"),
    ("a: &a {b: 1}\nc:\n  <<: *a\n", 3, 3, "a merge key `<<`, which a policy does not have; use `extends`"),
    ("a: 1\n---\nb: 2\n", 2, 1, "a second YAML document begins"),
    ("a: 1\nb: 2\na: 3\n", 3, 1, "the key 'a' stands in line 1 too"),
    ("a: 1\n'a': 3\n", 2, 1, "the key 'a' stands in line 1 too"),
    ("0: fp8\n", 1, 1, 'a key must be text, found the number 0; put it in quotes: "0"'),
    ("no: fp8\n", 1, 1, 'a key must be text, found `no`, which YAML reads as false; put it in quotes: "no"'),
    ("~: fp8\n", 1, 1, 'a key must be text, found null (`~`); put it in quotes: "~"'),
    (": fp8\n", 1, 1, "before `:` stands a key"),
    ("?\n: fp8\n", 1, 2, "a key must be text, found nothing"),
    # What would take a lot of time or memory.
    ("a: &a [*a]\n", 1, 8, "the alias *a stands inside of what it repeats"),
    ("a: &a\n  b: *a\n", 2, 6, "the alias *a stands inside of what it repeats"),
    ("- " * 200 + "x\n", 1, 201, "nest more than 100 levels deep"),
    ("a: " + "9" * 500, 1, 4, "a number of 500 characters"),
    ("a: 0x_\n", 1, 4, "looks like a number and is none"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "column", "says"), REFUSED, ids=[repr(case[0][:40]) for case in REFUSED])
def test_what_is_refused(parser: str, text: str, line: int, column: int, says: str) -> None:
    found_line, found_column, message = place_and_message(text)
    assert (found_line, found_column) == (line, column)
    assert says in message
    assert not message.startswith("not YAML")


def test_half_of_a_character_is_refused_by_one_parser_or_by_us(parser: str) -> None:
    line, _, message = place_and_message('a: "\\ud800"\n')
    assert line == 1
    assert "no character" in message or "half of a character" in message


def test_flow_collections_nested_deep(parser: str) -> None:
    assert "nest more than 100 levels deep" in place_and_message("[" * 100_000)[2]


def test_an_alias_bomb_is_refused_before_it_unfolds(parser: str) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30)]
    assert "larger than any policy" in place_and_message("\n".join(lines))[2]


def test_aliases_of_long_text_count_by_their_length(parser: str) -> None:
    text = f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 1_000)}]\n"
    assert "larger than any policy" in place_and_message(text)[2]


def test_aliases_that_nest_deep_are_refused(parser: str) -> None:
    lines = ["a0: &a0 [x]", *(f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 300))]
    assert "nest more than 100 levels deep" in place_and_message("\n".join(lines))[2]


def test_an_alias_repeats_what_it_names_and_stands_at_its_own_place(parser: str) -> None:
    node = read_yaml("a: &a {b: 1}\nc: *a\n", "policy.yaml")
    assert isinstance(node, MappingNode)
    assert plain(node) == {"a": {"b": 1}, "c": {"b": 1}}
    assert node.entries[1].value.location == Location("policy.yaml", 2, 4)


def test_a_document_may_begin_and_end_as_yaml_has_it(parser: str) -> None:
    node = read_yaml("%YAML 1.1\n--- # the policy\na: 1\n...\n", "policy.yaml")
    assert node is not None
    assert plain(node) == {"a": 1}


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n...\n# \n"])
def test_no_document(parser: str, text: str) -> None:
    node = read_yaml(text, "policy.yaml")
    assert node is None or plain(node) is None


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=6), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(values, st.sampled_from([True, False, None]))
def test_reads_what_pyyaml_reads(value: Any, flow_style: bool | None) -> None:
    text = yaml.safe_dump(value, default_flow_style=flow_style, allow_unicode=True)
    node = read_yaml(text, "policy.yaml")
    assert node is not None
    assert plain(node) == yaml.safe_load(text) == value


@given(st.text(st.sampled_from(list("ab:-[]{},*&!|>'\"%@`#? \n\t.\\0~<\u2028é")), max_size=40))
def test_whatever_the_text_there_is_a_document_or_a_located_error(text: str) -> None:
    try:
        read_yaml(text, "policy.yaml")
    except PolicyError as error:
        (problem,) = error.problems
        assert problem.location.line
        assert problem.location.column
        assert "not YAML" not in problem.message


@pytest.mark.parametrize("word", ["no", "off", "null", "~", "", "false"])
@pytest.mark.parametrize("written", ["layers:\n  a: {}\n", "layers:\n - kind: moe\n   method: {}\n", "default: {}\n"])
def test_words_for_no_where_a_method_is_expected(tmp_path: Path, word: str, written: str) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(written.format(word))
    with pytest.raises(PolicyError) as caught:
        load_policy(path)
    (problem,) = caught.value.problems
    assert "write `none` to say that nothing is to be quantized" in problem.message


def test_ten_thousand_rules_are_read_in_a_time_that_grows_with_them(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("layers:\n" + "".join(f"  model.layers.{n}.mlp.down_proj: fp8\n" for n in range(10_000)))
    policy = load_policy(path)
    assert len(policy.rules) == 10_000
    assert policy.rules[-1].location == Location(str(path), 10_001, 3)
