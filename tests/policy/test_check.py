"""What a policy may say, what it means once read, and what is said about one that is not valid."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyquant.errors import Location, PolicyError
from policyquant.inventory.kinds import KINDS
from policyquant.policy.load import load_policy
from policyquant.policy.methods import METHODS
from policyquant.policy.policy import SchemeFields
from tests.policy.documents import BAD, GOOD, Bad

DATA = Path("tests/data/policies")
E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"


def scheme(written: Any) -> SchemeFields:
    """The fields of a rule that says `written`."""
    return load_policy({"layers": {"*.mlp": written}}).rules[0].fields


def problems(policy: Any) -> list[str]:
    with pytest.raises(PolicyError) as caught:
        load_policy(policy)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize("policy", GOOD, ids=str)
def test_good_policies_are_read(policy: dict[str, Any]) -> None:
    load_policy(policy)


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: str(bad.policy))
def test_bad_policies_get_one_message_at_the_right_place(bad: Bad) -> None:
    (problem,) = problems(bad.policy)
    assert problem.startswith(f"<dict>{bad.path}: ")
    assert bad.says in problem


@pytest.mark.parametrize("method", METHODS)
def test_a_method_alone_and_a_mapping_with_it_say_the_same(method: str) -> None:
    assert scheme(method) == scheme({"method": method}) == SchemeFields(method)


@pytest.mark.parametrize("method", [spec for spec in METHODS.values() if spec.weight is not None], ids=lambda m: m.name)
def test_writing_out_what_a_method_has_anyway_is_allowed(method: Any) -> None:
    written: dict[str, Any] = {"method": method.name, "weight": method.weight.as_json()}
    if method.input is not None:
        written["input"] = method.input.as_json()
    fields = scheme(written)
    assert method.refine(method.weight, method.input, fields.weight, fields.input) == (method.weight, method.input)


@pytest.mark.parametrize(
    ("side", "written", "fields"),
    [
        ("weight", {"dtype": "fp8"}, {"dtype": E4M3}),
        ("weight", {"dtype": "fp8_e4m3"}, {"dtype": E4M3}),
        ("weight", {"dtype": "float8_e4m3fn"}, {"dtype": E4M3}),
        ("weight", {"dtype": "fp8_e5m2"}, {"dtype": E5M2}),
        ("weight", {"dtype": "float8_e5m2"}, {"dtype": E5M2}),
        ("weight", {"dtype": "int8"}, {"dtype": "int8"}),
        ("weight", {"dtype": "int4"}, {"dtype": "int4"}),
        ("weight", {"dtype": "fp4"}, {"dtype": "float4_e2m1fn"}),
        ("weight", {"group": 64}, {"group": 64, "granularity": "group"}),
        ("weight", {"block": [128, 128]}, {"block": (128, 128), "granularity": "block"}),
        ("weight", {"scale_dtype": "fp8_e8m0"}, {"scale_dtype": "float8_e8m0fnu"}),
        ("weight", {"symmetric": False}, {"symmetric": False}),
        ("input", {"group": 32}, {"group": 32, "granularity": "group"}),
        ("input", {"scheme": "dynamic"}, {"scheme": "dynamic"}),
        ("input", {"scheme": "static"}, {"scheme": "static", "granularity": "tensor"}),
        ("input", {"scale": 2}, {"scale": 2.0}),
        ("input", {"scale_ub": 1200}, {"scale_ub": 1200.0}),
        ("output", "none", "none"),
        ("output", "bf16", "bfloat16"),
        ("output", "fp16", "float16"),
        ("output", "fp32", "float32"),
        ("output", "bfloat16", "bfloat16"),
        ("output", "fp8", {"dtype": E4M3}),
        ("output", "fp8_e5m2", {"dtype": E5M2}),
        ("output", "float8_e4m3fn", {"dtype": E4M3}),
        ("output", {"dtype": "bf16"}, "bfloat16"),
        ("output", {"dtype": "fp8"}, {"dtype": E4M3}),
        ("output", {"dtype": "fp8", "group": 128}, {"dtype": E4M3, "group": 128, "granularity": "group"}),
        ("output", {"dtype": "fp8", "granularity": "token"}, {"dtype": E4M3, "granularity": "token"}),
        ("kv_cache", "none", "none"),
        ("kv_cache", "fp8", {"dtype": E4M3}),
        ("kv_cache", "fp8_e5m2", {"dtype": E5M2}),
        ("kv_cache", {"dtype": "fp8", "granularity": "head"}, {"dtype": E4M3, "granularity": "head"}),
        ("kv_cache", {"dtype": "fp8", "scale": 0.5}, {"dtype": E4M3, "scale": 0.5}),
    ],
)  # fmt: skip
def test_spellings_of_a_field(side: str, written: Any, fields: Any) -> None:
    assert getattr(scheme({side: written}), side) == fields


def test_the_full_scheme_and_its_short_name_say_the_same() -> None:
    full = scheme(
        {
            "method": "fp8_block",
            "weight": {"dtype": "float8_e4m3fn", "block": [128, 128]},
            "input": {"dtype": "float8_e4m3fn", "group": 128, "scheme": "dynamic"},
            "output": "bf16",
        }
    )
    block = METHODS["fp8_block"]
    assert block.refine(block.weight, block.input, full.weight, full.input) == (block.weight, block.input)
    assert full.output == "bfloat16"


def test_the_list_says_what_the_mapping_says() -> None:
    mapping = load_policy({"layers": {"*.mlp": {"method": "fp8", "output": "bf16"}, "*.attn": "none"}})
    listed = load_policy(
        {"layers": [{"match": "*.mlp", "method": "fp8", "output": "bf16"}, {"match": "*.attn", "method": "none"}]}
    )
    assert [rule.fields for rule in listed.rules] == [rule.fields for rule in mapping.rules]
    assert [rule.text for rule in listed.rules] == [rule.text for rule in mapping.rules] == ["*.mlp", "*.attn"]


def test_a_rule_of_a_list_has_patterns_kinds_and_may_be_optional() -> None:
    (rule,) = load_policy(
        {"layers": [{"match": ["*.mlp", "*.moe"], "kind": ["linear", "moe"], "optional": True, "method": "fp8"}]}
    ).rules
    assert [pattern.text for pattern in rule.patterns] == ["*.mlp", "*.moe"]
    assert rule.kinds == frozenset({"linear", "moe"})
    assert rule.optional


def test_a_rule_without_a_kind_reaches_every_kind_and_is_not_optional() -> None:
    (rule,) = load_policy({"layers": {"*.mlp": "fp8"}}).rules
    assert rule.kinds is None
    assert not rule.optional


def test_a_rule_by_kind_alone_needs_no_pattern() -> None:
    (rule,) = load_policy({"layers": [{"kind": "moe", "method": "fp8"}]}).rules
    assert rule.patterns == ()
    assert rule.text == "kind: moe"


def test_rules_keep_the_order_in_which_they_are_written() -> None:
    names = [*reversed(string.ascii_lowercase)]
    assert [rule.text for rule in load_policy({"layers": dict.fromkeys(names, "fp8")}).rules] == names


def test_what_is_not_said_has_its_default() -> None:
    policy = load_policy({})
    assert policy.rules == ()
    assert policy.default is None
    assert policy.protect == {"head", "embedding", "router"}
    assert policy.protect_location is None
    assert policy.groups == ()
    assert policy.untie is False


def test_none_as_a_default_is_not_the_same_as_no_default() -> None:
    policy = load_policy({"default": "none"})
    assert policy.default is not None
    assert policy.default.fields == SchemeFields("none")


def test_protect_may_be_empty() -> None:
    policy = load_policy({"protect": []})
    assert policy.protect == frozenset()
    assert policy.protect_location == Location("<dict>")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_a_word_of_the_language(kind: str) -> None:
    assert load_policy({"layers": [{"kind": kind, "output": "bf16"}]}).rules[0].kinds == frozenset({kind})


def test_groups_are_lists_of_patterns() -> None:
    (group,) = load_policy({"groups": [["*.to_q", "*.to_k"]]}).groups
    assert [pattern.text for pattern in group] == ["*.to_q", "*.to_k"]


@pytest.mark.parametrize(
    ("written", "comparison", "limit"),
    [("<= 11.5", "<=", 11.5), ("<5", "<", 5.0), (">=4", ">=", 4.0), ("> 4", ">", 4.0), (" ==  4.25 ", "==", 4.25)],
)
def test_comparisons_of_bits_per_weight(written: str, comparison: str, limit: float) -> None:
    (expected,) = load_policy({"expect": {"bits_per_weight": written}}).expected_bits
    assert (expected.comparison, expected.limit) == (comparison, limit)


def test_expectations_of_layers_have_a_scheme_and_may_be_optional() -> None:
    head, router = load_policy(
        {"expect": {"layers": {"head": "none", "*.router": {"method": "none", "optional": True}}}}
    ).expected_layers
    assert (head.pattern.text, head.fields, head.optional) == ("head", SchemeFields("none"), False)
    assert (router.pattern.text, router.fields, router.optional) == ("*.router", SchemeFields("none"), True)


def test_all_problems_are_told_at_once_in_the_order_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text('expect: {bits: 3}\nuntie: 3\nlayers:\n  "*.a[": fp8\n  "*.b": {method: fp9, weight: {grup: 3}}\n')
    assert [problem.removeprefix(f"{path}:").split(": ")[0] for problem in problems(path)] == [
        "1:10", "2:8", "4:7", "5:19", "5:33",
    ]  # fmt: skip


def test_a_flood_of_problems_is_cut_off() -> None:
    messages = problems({"layers": {f"a{number}": "fp9" for number in range(10_000)}})
    assert len(messages) == 101
    assert messages[-1].endswith("100 problems so far; the rest is not looked at")


def test_many_alternatives_in_many_patterns_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("layers:\n" + "".join(f'  "{number}{"{a,b}" * 13}": fp8\n' for number in range(1000)))
    (message,) = problems(path)
    assert message == f"{path}:14:3: the patterns of this policy have more than 100,000 alternatives"


@pytest.mark.parametrize(
    ("written", "column"),
    [
        ("layers:\n  model.x[: fp8\n", 10),
        ("layers:\n  'model.x[': fp8\n", 11),
        ('layers:\n  "model.x[": fp8\n', 11),
        ('layers:\n  "mod\\x65l.x[": fp8\n', 3),
        ("layers:\n  ? |-\n    model.x[\n  : fp8\n", 5),
    ],
    ids=["plain", "single quotes", "double quotes", "escapes", "block"],
)
def test_a_problem_of_a_pattern_is_located_inside_of_it_where_the_text_is_verbatim(
    tmp_path: Path, written: str, column: int
) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(written)
    (problem,) = problems(path)
    assert problem.startswith(f"{path}:2:{column}: pattern 'model.x[': ")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (3, "found a Python int"),
        (None, "found a Python NoneType"),
        (["fp8"], "found a Python list"),
        ({"layers": {3: "fp8"}}, "<dict>.layers: a key must be text, found a Python int"),
        (
            {"layers": {"a": {"weight": {"group": {1, 2}}}}},
            "<dict>.layers.a.weight.group: expected text, a number, a list",
        ),
        ({"version": 10**5000}, "<dict>.version: a number of more than 400 digits"),
        ({"layers": {"a.\ud800": "fp8"}}, r"<dict>.layers: the key 'a.\ud800' holds half of a character"),
        ({"layers": [{"match": "re:\udfff", "method": "fp8"}]}, r".match: the text 're:\udfff' holds half of a"),
    ],
)
def test_python_data_that_is_no_policy(value: Any, says: str) -> None:
    (problem,) = problems(value)
    assert says in problem


@pytest.mark.parametrize("key", ["ignore", "exclude", "modules_to_not_convert", "ignored_layers"])
def test_keys_that_leave_layers_out_elsewhere_point_to_a_rule(key: str) -> None:
    advice = 'leave layers out with a later rule in `layers`: `"lm_head": none`'
    (problem,) = problems({"layers": {"*": "fp8"}, key: ["lm_head", "*.gate"]})
    assert f"unknown key of a policy '{key}'; {advice}" in problem
    (problem,) = problems({"layers": [{"match": "*", "method": "fp8", key: "lm_head"}]})
    assert f"unknown key of a rule '{key}'; {advice}" in problem


@pytest.mark.parametrize(
    ("item", "says"),
    [
        ({"*.mlp": "fp8"}, 'write {match: "*.mlp", method: fp8}'),
        ({"mlp": "fp8"}, 'write {match: "mlp", method: fp8}'),
        ({"*.mlp": {"output": "fp8"}}, 'write {match: "*.mlp", method: …}'),
    ],
)
def test_a_pattern_with_a_scheme_in_a_list_is_told_how_a_list_says_it(item: dict[str, Any], says: str) -> None:
    (problem,) = problems({"layers": [item]})
    assert says in problem


def test_python_data_that_contains_itself() -> None:
    policy: dict[str, Any] = {}
    policy["layers"] = policy
    (problem,) = problems(policy)
    assert "nest more than 100 levels deep" in problem


def test_a_policy_is_returned_as_it_is() -> None:
    policy = load_policy({"layers": {"*": "fp8"}})
    assert load_policy(policy) is policy


def test_rules_of_python_data_have_no_position() -> None:
    policy = load_policy({"layers": {"*.mlp": "fp8"}})
    assert policy.source == "<dict>"
    assert policy.rules[0].location == Location("<dict>", None, None)


def test_design_policy() -> None:
    policy = load_policy(DATA / "design.yaml")
    own = [rule for rule in policy.rules if rule.origin == "own"]
    assert [(rule.text, rule.location.line, rule.location.column) for rule in own] == [
        ("decoder.*.moe", 5, 3),
        ("*.qkv_proj", 6, 3),
        ("decoder.*.mlp.act", 7, 3),
        ("decoder.*.mlp.down_proj", 8, 3),
        ("*.self_attn", 9, 3),
        ("decoder.*.moe.shared_experts", 10, 3),
        ("model.layers.{0..3,-4..-1}", 11, 3),
    ]
    assert [each.location.line for each in policy.expected_layers] == [13, 13]


words = st.sampled_from(
    ["layers", "match", "kind", "method", "weight", "input", "output", "kv_cache", "dtype", "group", "block", "scheme",
     "scale", "default", "protect", "expect", "bits_per_weight", "extends", "fp8", "none", "linear", "*.mlp", "a[", ""]
)  # fmt: skip
data = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | words | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words | st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(words, data, max_size=4))
def test_whatever_the_data_there_is_a_policy_or_an_error_for_people(policy: dict[str, Any]) -> None:
    try:
        load_policy(policy)
    except PolicyError as error:
        for problem in error.problems:
            if not problem.location.file.startswith("<dict>") or not problem.message:
                raise AssertionError(problem) from error
