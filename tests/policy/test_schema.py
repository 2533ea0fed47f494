"""policy.schema.json says to editors what the checker says on loading."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from policyquant.errors import Location, PolicyError
from policyquant.inventory.kinds import KINDS
from policyquant.policy import check, scheme_fields
from policyquant.policy.document import from_python, plain
from policyquant.policy.load import load_policy
from policyquant.policy.methods import METHODS
from policyquant.policy.presets import preset_names, preset_text
from policyquant.policy.problems import Problems
from policyquant.policy.schema_errors import add_from_schema, schema_problems
from policyquant.policy.scheme import FLOAT_DTYPES, FP8_DTYPES, QUANTIZED_DTYPES, SCALE_DTYPES
from policyquant.policy.yaml_reader import read_yaml
from policyquant.schemas import policy_schema
from tests.policy.documents import BAD, GOOD, Bad

SCHEMA = policy_schema()
DEFS = SCHEMA["$defs"]


def constants(choice: dict[str, Any]) -> list[str]:
    return [each["const"] for each in choice["oneOf"]]


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("policy", GOOD, ids=str)
def test_accepts_good_policies(policy: dict[str, Any]) -> None:
    assert schema_problems(policy) == []


@pytest.mark.parametrize("bad", [bad for bad in BAD if bad.schema], ids=lambda bad: str(bad.policy))
def test_refuses_bad_policies(bad: Bad) -> None:
    assert schema_problems(bad.policy)


@pytest.mark.parametrize("bad", [bad for bad in BAD if not bad.schema], ids=lambda bad: str(bad.policy))
def test_what_the_schema_cannot_see_is_known(bad: Bad) -> None:
    assert schema_problems(bad.policy) == []


@pytest.mark.parametrize("name", preset_names())
def test_accepts_presets(name: str) -> None:
    node = read_yaml(preset_text(name), name)
    assert node is not None
    assert schema_problems(plain(node)) == []


@pytest.mark.parametrize("name", ["design.yaml", "design.json"])
def test_accepts_the_design_s_policy(name: str) -> None:
    node = read_yaml((Path("tests/data/policies") / name).read_text().replace("\t", " "), name)
    assert node is not None
    assert schema_problems(plain(node)) == []


def test_words_of_the_schema_are_those_of_the_checker() -> None:
    assert tuple(SCHEMA["properties"]) == check.DOCUMENT_KEYS
    assert tuple(SCHEMA["properties"]["expect"]["properties"]) == check.EXPECT_KEYS
    assert tuple(DEFS["rule"]["properties"]) == check.RULE_KEYS
    assert constants(DEFS["method"]) == list(METHODS)
    assert constants(DEFS["kind"]) == list(KINDS)
    for name, readers in (("weight", scheme_fields.WEIGHT_FIELDS), ("input", scheme_fields.INPUT_FIELDS)):
        assert list(DEFS[name]["properties"]) == list(readers)
        assert DEFS[name]["properties"]["dtype"]["enum"] == list(QUANTIZED_DTYPES)
        assert DEFS[name]["properties"]["scale_dtype"]["enum"] == list(SCALE_DTYPES)
    assert list(DEFS["output"]["anyOf"][1]["properties"]) == list(scheme_fields.OUTPUT_FIELDS)
    assert list(DEFS["kv_cache"]["anyOf"][1]["properties"]) == list(scheme_fields.KV_CACHE_FIELDS)
    assert DEFS["output"]["anyOf"][0]["enum"] == [*FLOAT_DTYPES, *FP8_DTYPES, "none"]
    assert DEFS["kv_cache"]["anyOf"][0]["enum"] == [*FP8_DTYPES, "none"]


def test_everything_that_an_editor_offers_is_described() -> None:
    def objects(schema: Any) -> Any:
        if isinstance(schema, dict):
            yield schema
            for inner in schema.values():
                yield from objects(inner)
        elif isinstance(schema, list):
            for inner in schema:
                yield from objects(inner)

    for schema in objects(SCHEMA):
        for choice in schema.get("oneOf", ()):
            assert choice["description"]
    described = [
        *SCHEMA["properties"].values(),
        *DEFS["weight"]["properties"].values(),
        *DEFS["input"]["properties"].values(),
    ]
    for schema in [*described, *(DEFS[name] for name in ("rule", "scheme", "output", "kv_cache", "pattern", "kind"))]:
        assert schema["description"]
        assert schema["title"]


def test_examples_of_the_schema_are_valid() -> None:
    def check_examples(schema: Any) -> int:
        if isinstance(schema, list):
            return sum(map(check_examples, schema))
        if not isinstance(schema, dict):
            return 0
        examples = schema.get("examples", [])
        if not isinstance(examples, list):
            return sum(map(check_examples, schema.values()))  # A property that is called `examples`.
        for example in examples:
            assert list(Draft202012Validator({**schema, "$defs": DEFS}).iter_errors(example)) == []
        return len(examples) + sum(check_examples(inner) for key, inner in schema.items() if key != "examples")

    assert check_examples(SCHEMA) > 30


@pytest.mark.parametrize("example", SCHEMA["examples"])
def test_examples_of_whole_policies_are_read(example: dict[str, Any]) -> None:
    load_policy(example)


@pytest.mark.parametrize("bad", [bad for bad in BAD if bad.schema], ids=lambda bad: str(bad.policy))
def test_what_the_schema_finds_is_said_in_people_s_words(bad: Bad) -> None:
    for _, message in schema_problems(bad.policy):
        assert message
        for word in (
            "is not valid under",
            "does not match",
            "is a required property",
            "$ref",
            "additionalProperties",
            "{'",
        ):
            assert word not in message


@pytest.mark.parametrize(
    ("policy", "path"),
    [
        ({"layers": {"*.a": "fp88"}}, ["layers", "*.a"]),
        ({"layers": {"*.a": {"method": "fp88"}}}, ["layers", "*.a", "method"]),
        ({"layers": [{"match": "*.a", "method": "fp88"}]}, ["layers", 0, "method"]),
        ({"default": "fp88"}, ["default"]),
        ({"expect": {"layers": {"*.a": "fp88"}}}, ["expect", "layers", "*.a"]),
    ],
    ids=str,
)
def test_an_editor_underlines_the_wrong_word_and_not_all_that_is_around_it(policy: Any, path: list[str | int]) -> None:
    (error,) = Draft202012Validator(SCHEMA).iter_errors(policy)
    assert list(error.absolute_path) == path


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"layer": {}}, "unknown key 'layer'; did you mean 'layers'?"),
        ({"untie": 3}, "expected true or false, found the number 3"),
        ({"protect": ["heads"]}, "found the text 'heads'; did you mean 'head'?"),
        ({"layers": {"a": {"weight": {"group": 0}}}}, "expected a number from 1, found the number 0"),
        ({"default": {"weight": {"group": 64}}}, "`weight` needs method"),
    ],
)
def test_messages(policy: Any, message: str) -> None:
    ((_, found),) = schema_problems(policy)
    assert message in found


def test_the_schema_adds_what_the_checker_has_not_noted_at_the_place_where_it_is() -> None:
    node = read_yaml("untie: 3\nlayers:\n  a: {weight: {group: 0}}\n", "policy.yaml")
    assert node is not None
    problems = Problems()
    problems.add(Location("policy.yaml", 1, 8), "noted by the checker")
    add_from_schema(node, problems)
    assert [(str(problem.location), problem.message) for problem in problems.found[1:]] == [
        ("policy.yaml:3:23", "expected a number from 1, found the number 0")
    ]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: str(bad.policy))
def test_the_schema_adds_nothing_to_what_the_checker_says(bad: Bad) -> None:
    node = from_python(bad.policy, with_paths=True)
    problems = Problems()
    check.check(node, problems)
    before = len(problems.found)
    add_from_schema(node, problems)
    assert problems.found[before:] == []


def test_jsonschema_is_loaded_only_after_a_policy_was_refused() -> None:
    program = (
        "import sys; from policyquant.policy.load import load_policy; load_policy({'extends': 'fp8-dynamic'});"
        "print('jsonschema' in sys.modules)\n"
        "try: load_policy({'untie': 3})\n"
        "except ValueError: pass\n"
        "except Exception as error: print(type(error).__name__, 'jsonschema' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines() == ["False", "PolicyError True"]


# Policies of likely words in likely places, good ones and bad ones mixed.
dtypes = st.sampled_from([*QUANTIZED_DTYPES, *FLOAT_DTYPES, "none", "fp9"])
numbers = st.sampled_from([1, 16, 32, 64, 128, 128.0, 0, -1, 0.5, True, "32"])


def fields(readers: Any) -> st.SearchStrategy[dict[str, Any]]:
    some = {
        "dtype": dtypes,
        "granularity": st.sampled_from(["tensor", "channel", "token", "group", "block", "head"]),
        "group": numbers,
        "block": st.sampled_from([[128, 128], [64, 64], [128], 128]),
        "symmetric": st.sampled_from([True, False, 1]),
        "scheme": st.sampled_from(["dynamic", "static", "never"]),
        "scale": numbers,
        "scale_ub": numbers,
        "scale_dtype": st.sampled_from([*SCALE_DTYPES, "int8"]),
        "global_scale_dtype": st.sampled_from(["fp32", "float32", "bf16"]),
    }
    return st.fixed_dictionaries({}, optional={name: some[name] for name in readers})


schemes = st.sampled_from([*METHODS, "fp9"]) | st.fixed_dictionaries(
    {},
    optional={
        "method": st.sampled_from([*METHODS]),
        "weight": fields(scheme_fields.WEIGHT_FIELDS),
        "input": fields(scheme_fields.INPUT_FIELDS),
        "output": dtypes | fields(scheme_fields.OUTPUT_FIELDS),
        "kv_cache": dtypes | fields(scheme_fields.KV_CACHE_FIELDS),
    },
)
patterns = st.sampled_from(["*.mlp", "decoder.*.moe", "re:.*", "a.{0..3}", "lm_head", ""])
rule_extras = st.fixed_dictionaries(
    {},
    optional={
        "match": patterns | st.lists(patterns, max_size=2),
        "kind": st.sampled_from(KINDS) | st.lists(st.sampled_from(KINDS), max_size=2),
        "optional": st.booleans(),
    },
)
rules = st.builds(
    lambda extras, scheme: {**extras, **(scheme if isinstance(scheme, dict) else {"method": scheme})},
    rule_extras,
    schemes,
)
policies = st.fixed_dictionaries(
    {},
    optional={
        "version": st.sampled_from([1, 1.0, 2, True, "1"]),
        "default": schemes,
        "protect": st.lists(st.sampled_from(KINDS), max_size=3),
        "layers": st.dictionaries(patterns, schemes, max_size=2) | st.lists(rules, max_size=2),
        "groups": st.lists(st.lists(patterns, max_size=2), max_size=2),
        "untie": st.booleans(),
        "expect": st.fixed_dictionaries(
            {},
            optional={
                "layers": st.dictionaries(patterns, schemes, max_size=2),
                "bits_per_weight": st.sampled_from(["<= 11.5", ">4", "== 4 ", "4", ["< 5", "> 4"], []]),
            },
        ),
    },
)


@given(policies)
def test_the_schema_accepts_whatever_the_checker_accepts(policy: dict[str, Any]) -> None:
    try:
        load_policy(policy)
    except PolicyError:
        return
    assert schema_problems(policy) == []


@given(policies)
def test_the_checker_refuses_whatever_the_schema_refuses(policy: dict[str, Any]) -> None:
    if schema_problems(policy):
        with pytest.raises(PolicyError):
            load_policy(policy)
