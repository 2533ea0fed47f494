"""Regular expressions as automata mean what RE2 means by them."""

from __future__ import annotations

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from policyquant.policy import regex_automaton
from policyquant.policy.regex_automaton import automaton_of


@pytest.mark.parametrize(
    ("expression", "name", "matches"),
    [
        # A name is matched as a whole, with or without anchors.
        ("model", "model", True),
        ("model", "model.layers", False),
        ("^model$", "model", True),
        ("^a|b$", "b", True),
        # Characters, sets and classes.
        (r"layers\.1", "layers.1", True),
        (r"layers\.1", "layersx1", False),
        ("layers.1", "layersx1", True),
        ("[a-c]", "b", True),
        ("[^a-c]", "b", False),
        ("[^a]", ".", True),
        ("[]a]", "]", True),
        ("[a-]", "-", True),
        (r"[\d_]", "7", True),
        (r"\w\d\s\W\D\S", "a1 -xy", True),
        (r"\d", "٣", False),
        (".", "\n", False),
        ("[^a]", "\n", True),
        # Repetition, greedy or not.
        ("(ab)*", "", True),
        ("(ab)*", "abab", True),
        ("(ab)+", "", False),
        ("ab?", "a", True),
        (".*?x", "aax", True),
        ("a{2}", "aa", True),
        ("a{2}", "aaa", False),
        ("a{2,}", "aaaa", True),
        ("a{1,2}", "aaa", False),
        ("(a|b){2}c", "abc", True),
        # A brace that counts nothing is a character.
        ("a{,2}", "a{,2}", True),
        ("a{b}", "a{b}", True),
        ("a{01}", "a{01}", True),
        ("a{1,02}", "aa", False),
        ("a{1,02}", "a{1,02}", True),
        ("a{0}", "", True),
        # Groups and alternatives.
        ("(?:q|k|v)_proj", "k_proj", True),
        ("(q|k|)_proj", "_proj", True),
        ("a|b|", "", True),
    ],
)
def test_what_an_expression_matches(expression: str, name: str, matches: bool) -> None:
    automaton = automaton_of(expression)
    assert automaton is not None
    assert automaton.matches(name) is matches
    assert (re2.fullmatch(expression, name) is not None) is matches


@pytest.mark.parametrize(
    "expression",
    [
        r"\bq_proj",  # a place between characters, not a character
        r"\Amodel\z",
        "(^a|b)c",
        "^{2}a",
        "^?a",
        "a(b$|c)",
        "(?i)GATE",  # flags
        "(?P<part>q|k)",
        "(?s:.)",
        r"\pL+",  # what only tables of Unicode know
        "[[:alpha:]]",
        r"\x41",
        r"\Qa.b\E",
        "a{1000}b{500}",  # very many positions
        "(" * 60 + "a" + ")" * 60,  # very deep
    ],
)
def test_what_is_left_to_re2(expression: str) -> None:
    re2.compile(expression)
    assert automaton_of(expression) is None


@pytest.mark.parametrize(
    ("expression", "read", "sensitive"),
    [
        (r"layers\.\d+\.mlp", "layers.", False),
        (r"layers\.\d\d?\.mlp", "layers.", True),
        (r".*mlp", "layers.", False),
        (r".*\.1\..*", "layers.", True),
        (r"layers\.[0-3]\.mlp", "layers.", True),
        (r"layers\.[0-3]\.mlp", "lay", False),
    ],
)
def test_whether_indices_can_be_told_apart_from_here(expression: str, read: str, sensitive: bool) -> None:
    automaton = automaton_of(expression)
    assert automaton is not None
    assert automaton.sensitive_at(automaton.step(automaton.initial, read)) is sensitive


ATOMS = st.sampled_from(
    [
        *["a", "b", "1", "0", "-", "é", "{", "}", ".", r"\.", "()", "(|a)"],
        *["[ab]", "[^a]", "[0-9]", "[a-c_-]", "[]a]", r"[\w-]", r"[^\d.]", r"\d", r"\w", r"\S"],
    ]
)
COUNTS = ["*", "+", "?", "*?", "{2}", "{0}", "{1,3}", "{2,}", "{,2}", "{01}", "{1,02}", "{a}"]
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.builds("{}{}".format, inner, inner),
        st.builds("({}|{})".format, inner, inner),
        st.builds("(?:{}){}".format, inner, st.sampled_from(COUNTS)),
    ),
    max_leaves=8,
)
ANCHORED = st.builds("{}{}{}".format, st.sampled_from(["", "^"]), EXPRESSIONS, st.sampled_from(["", "$"]))


@given(ANCHORED, st.lists(st.text("ab10.x_-{},\né]", max_size=6), min_size=1, max_size=10))
def test_it_agrees_with_re2(expression: str, names: list[str]) -> None:
    automaton = automaton_of(expression)
    assert automaton is not None
    for name in names:
        assert automaton.matches(name) is (re2.fullmatch(expression, name) is not None)


@given(EXPRESSIONS, st.text("a10.", max_size=4), st.integers(0, 200), st.integers(0, 200))
def test_indices_that_are_not_told_apart_lead_to_the_same_state(
    expression: str, read: str, first: int, second: int
) -> None:
    automaton = automaton_of(expression)
    assert automaton is not None
    state = automaton.step(automaton.initial, read)
    if not automaton.sensitive_at(state):
        assert automaton.step(state, str(first)) == automaton.step(state, str(second))


def test_states_are_forgotten_before_they_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regex_automaton, "_MOST_TRANSITIONS", 100)
    automaton = automaton_of("(a|b)*a(a|b){14}")
    assert automaton is not None
    for number in range(500):
        name = f"{number:015b}".replace("0", "a").replace("1", "b")
        assert automaton.matches(name) is name.startswith("a")
        assert len(automaton._transitions) <= 100
