"""config.json: what is read, what is reported, what is refused."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from policyquant.errors import SourceError
from policyquant.inventory.config_file import declared_quantization, parse_config, parse_quantization_file
from tests.inventory.files_on_disk import DATA, refusal

CASES: dict[str, Any] = {
    case["id"]: case["text"] for case in json.loads((DATA / "config_edge_cases.json").read_text("utf-8"))
}


def parse(case: str) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    config = parse_config(CASES[case].encode(), "config.json")
    return dict(config.values), [(finding.code, finding.level) for finding in config.findings]


def test_null_is_no_quantization() -> None:
    values, findings = parse("null_quantization_config")
    assert (declared_quantization(values), findings) == ({}, [])


def test_an_empty_quantization_config_is_noted_and_read_as_none() -> None:
    values, findings = parse("empty_quantization_config")
    assert (declared_quantization(values), findings) == ({}, [("PQ433", "note")])


def test_a_list_for_an_object_is_refused_with_its_path() -> None:
    with pytest.raises(SourceError, match=r"^config\.json: quantization_config: expected an object, found a list$"):
        parse("list_instead_of_object")


def test_two_levels_that_differ_are_reported_with_both_paths() -> None:
    config = parse_config(CASES["both_levels_differ"].encode(), "config.json")
    (finding,) = config.findings
    assert "quantization_config and text_config.quantization_config differ" in finding.message
    assert declared_quantization(config.values) == {"quant_method": "fp8"}


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("only_text_config", {"quant_method": "compressed-tensors", "config_groups": {}}),
        ("legacy_compression_config", {"quant_method": "compressed-tensors"}),
        ("mlx_key", {"group_size": 64, "bits": 4}),
    ],
)
def test_quantization_is_found_wherever_it_is_declared(case: str, expected: dict[str, object]) -> None:
    assert declared_quantization(parse(case)[0]) == expected


@pytest.mark.parametrize("key", ["text_config", "llm_config"])
def test_the_text_model_of_several_modalities_may_declare_it(key: str) -> None:
    assert declared_quantization({key: {"quantization_config": {"quant_method": "fp8"}}}) == {"quant_method": "fp8"}


@pytest.mark.parametrize(
    "text",
    [
        b'{"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": null}}',
        b'{"quant_algo": "FP8", "kv_cache_quant_algo": null}',
    ],
)
def test_modelopts_file_says_it_at_either_level(text: bytes) -> None:
    said = parse_quantization_file(text, "hf_quant_config.json")
    assert said == {"quant_algo": "FP8", "kv_cache_quant_algo": None}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[]", "hf_quant_config.json: expected a JSON object, found a list"),
        (b'{"quantization": "FP8"}', "hf_quant_config.json: quantization: expected an object, found a string"),
    ],
)
def test_what_is_no_file_of_modelopts_is_refused(text: bytes, message: str) -> None:
    with pytest.raises(SourceError) as refused:
        parse_quantization_file(text, "hf_quant_config.json")
    assert str(refused.value) == message


def test_infinity_and_nan_are_read() -> None:
    assert parse("infinity")[0]["time_step_limit"] == [0.0, math.inf]
    assert math.isnan(parse("nan")[0]["rms_norm_eps"])


def test_a_byte_order_mark_is_accepted() -> None:
    assert parse("bom") == ({"model_type": "llama"}, [])


def test_a_trailing_comma_is_refused_with_its_place() -> None:
    with pytest.raises(SourceError, match=r"^config\.json:1:2[34]: .*trailing commas"):
        parse("trailing_comma")


def test_a_key_that_stands_twice_is_reported_with_its_place() -> None:
    config = parse_config(CASES["duplicate_key"].encode(), "config.json")
    (finding,) = config.findings
    assert finding.message == "config.json:1:40: the key 'ignore' stands twice; the last one holds"
    assert config.values["quantization_config"] == {"ignore": ["b"]}


def test_two_spellings_of_the_dtype_that_differ_are_noted() -> None:
    assert parse("dtype_vs_torch_dtype")[1] == [("PQ432", "note")]


def test_a_config_that_names_code_is_data() -> None:
    assert parse("auto_map_present")[0]["auto_map"] == {"AutoConfig": "x.Y"}


@pytest.mark.parametrize("case", CASES)
def test_no_config_gives_anything_but_values_or_an_explained_refusal(case: str) -> None:
    message = refusal(lambda: parse(case))
    assert not message or message.startswith("config.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "config.json: empty; expected JSON"),
        (b"  \n", "config.json: empty; expected JSON"),
        (b"[]", "config.json: expected a JSON object, found a list"),
        (b'"x"', "config.json: expected a JSON object, found a string"),
        (b"null", "config.json: expected a JSON object, found null"),
        (b'{"a": 1} x', "config.json:1:10: not JSON: extra data, found 'x'"),
        (b'{\n "a": tru }', "config.json:2:7: not JSON: expecting value, found 'tru }'"),
        (b'{"a": "\xe9"}', "config.json:1:8: not UTF-8"),
        ('{"a": 1}'.encode("utf-16"), "config.json:1:1: not UTF-8"),
        (b"[" * 200_000, "config.json: nested too deeply"),
        (b'{"a": "\\udc00"}', "config.json: a string has half of a surrogate pair"),
    ],
)
def test_what_is_no_config_is_refused(text: bytes, message: str) -> None:
    with pytest.raises(SourceError) as refused:
        parse_config(text, "config.json")
    assert str(refused.value).startswith(message)


def test_a_repeated_key_is_found_among_strings_that_look_like_it() -> None:
    text = '{"a": "\\"b\\": {", "c": [{"b": 1}, {"b": 2}], "b": 3,\n  "b": 4}'
    (finding,) = parse_config(text.encode(), "config.json").findings
    assert finding.message.startswith("config.json:2:3: the key 'b'")
