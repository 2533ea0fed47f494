"""Files of policies: what may be given to `load_policy`, and what is said about files that are none."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from policyquant import Inventory, resolve
from policyquant.errors import Location, PolicyError
from policyquant.policy.load import load_policy

DATA = Path("tests/data/policies")
YAML = "layers:\n  '*.mlp': fp8\n"
JSON = '{"layers": {"*.mlp": "fp8"}}'


def problem(source: Any) -> str:
    with pytest.raises(PolicyError) as caught:
        load_policy(source)
    (found,) = caught.value.problems
    return str(found)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("policy.yaml", YAML), ("policy.yml", YAML), ("policy.YAML", YAML), ("policy.json", JSON),
        ("policy.yaml", JSON),
        ("policy", YAML), ("policy", JSON), ("policy.txt", f"  \n{JSON}"), ("policy.conf", YAML),
        ("policy.yaml", "\ufeff" + YAML), ("policy.json", "\ufeff" + JSON), ("policy.yaml", YAML.replace("\n", "\r\n")),
    ],
)  # fmt: skip
def test_the_suffix_says_what_a_file_is_and_else_its_first_character(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_bytes(text.encode())
    (rule,) = load_policy(path).rules
    assert rule.text == "*.mlp"
    assert rule.fields.method == "fp8"
    assert rule.location.file == str(path)


def test_json_is_not_read_as_yaml(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_text("layers: {}")
    assert problem(path) == f"{path}:1:1: expected a value, found 'layers'"


def test_a_byte_order_mark_does_not_move_columns(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_bytes(b"\xef\xbb\xbfuntie: 3\n")
    assert problem(path).startswith(f"{path}:1:8: ")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "1:1: the file is empty"),
        (b" \n\t\n", "1:1: the file is empty"),
        (b"# nothing yet\n", "1:1: the file has comments only"),
        (YAML.encode("utf-16"), "1:1: the file is UTF-16; save it as UTF-8"),
        (YAML.encode("utf-32"), "1:1: the file is UTF-32; save it as UTF-8"),
        ("untie: true\ndescription: für".encode("latin-1"), "2:15: the byte 0xfc is not UTF-8; save the file as UTF-8"),
        (b"- fp8\n", "1:1: a policy is a mapping with keys such as `layers`, found a list"),
        (b"fp8\n", "1:1: a policy is a mapping with keys such as `layers`, found the text 'fp8'"),
    ],
)
def test_files_that_are_no_policy(tmp_path: Path, data: bytes, says: str) -> None:
    path = tmp_path / "policy.yaml"
    path.write_bytes(data)
    assert problem(path).startswith(f"{path}:{says}")


def test_a_missing_file_and_its_nearest_neighbour(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(YAML)
    missing = tmp_path / "polcy.yaml"
    assert problem(missing) == f"{missing}: no such file; did you mean 'policy.yaml'?"


def test_a_missing_file_in_a_missing_folder() -> None:
    assert problem("no/such/policy.yaml") == "no/such/policy.yaml: no such file"


def test_a_misspelled_preset() -> None:
    assert problem("fp8-dynamc") == "fp8-dynamc: no such file or preset; did you mean 'fp8-dynamic'?"


def test_a_directory(tmp_path: Path) -> None:
    assert problem(tmp_path) == f"{tmp_path}: expected a policy's file, found a directory"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    os.mkfifo(path)
    assert problem(path) == f"{path}: expected a policy's file, found not a regular file"


def test_a_file_larger_than_any_policy(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    with path.open("wb") as file:
        file.truncate(16 * 2**20 + 1)
    assert problem(path) == f"{path}: larger than 16 MiB, which no policy is"


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(YAML)
    path.chmod(0)
    assert problem(path).startswith(f"{path}: cannot be read")


@pytest.mark.parametrize("name", ["a\0b.yaml", "x" * 5000, "\ud800.yaml"])
def test_names_that_no_file_can_have(name: str) -> None:
    assert "cannot be read" in problem(name)


def test_a_preset_by_name_is_the_preset_whatever_lies_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fp8-dynamic").write_text("default: int8\n")
    monkeypatch.chdir(tmp_path)
    assert load_policy("fp8-dynamic").default is None
    assert load_policy("./fp8-dynamic").default is not None
    assert load_policy(Path("fp8-dynamic")).default is not None


def test_the_hash_of_one_file_is_that_of_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_bytes(YAML.encode())
    assert load_policy(path).sha256 == hashlib.sha256(YAML.encode()).hexdigest()


def test_the_hash_of_python_data_depends_on_the_order_of_rules() -> None:
    first, second = {"layers": {"a": "fp8", "b": "none"}}, {"layers": {"b": "none", "a": "fp8"}}
    assert load_policy(first).sha256 == load_policy(dict(first)).sha256
    assert load_policy(first).sha256 != load_policy(second).sha256


def test_a_policy_inside_a_config() -> None:
    policy = load_policy(DATA / "config.json")
    assert [rule.text for rule in policy.rules] == ["lm_head", "kind: conv"]
    assert policy.default is not None
    assert policy.default.fields.method == "int8"
    assert policy.rules[0].location == Location(str(DATA / "config.json"), 10, 7)


def config(tmp_path: Path, value: Any) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(value))
    return path


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"quantization_config": {"quant_method": "policyquant", "layers": {"*.mlp": "fp8"}}},
         "inside a config.json rules must be a list"),
        ({"quantization_config": {"quant_method": "fp8"}},
         "expected `quant_method` 'policyquant', found `quant_method` 'fp8'"),
        ({"quantization_config": {"layers": []}}, "found no `quant_method`"),
        ({"quantization_config": [1]}, "`quantization_config`: expected a mapping, found a list"),
        ({"quantization_config": {"quant_method": "policyquant", "layer": []}}, "did you mean 'layers'?"),
        ({"quantization_config": {"quant_method": "policyquant", "extends": "../base.yaml"}},
         "a policy inside a config.json extends presets only, found '../base.yaml'"),
        ({"model_type": "llama"}, "a model's config.json without a policy"),
        ({"architectures": ["LlamaForCausalLM"]}, "a model's config.json without a policy"),
        ({"quant_method": "policyquant", "layers": []}, "unknown key of a policy 'quant_method'"),
    ],
)  # fmt: skip
def test_configs_that_hold_no_policy(tmp_path: Path, value: Any, says: str) -> None:
    assert says in problem(config(tmp_path, value))


def test_a_policy_inside_a_config_may_extend_a_preset(tmp_path: Path) -> None:
    value = {"quantization_config": {"quant_method": "policyquant", "extends": "fp8-kv", "layers": []}}
    assert load_policy(config(tmp_path, value)).files[1:] == ("fp8-kv",)


def test_expectations_inside_a_config_may_be_a_mapping_since_their_order_decides_nothing(tmp_path: Path) -> None:
    value = {"quantization_config": {"quant_method": "policyquant", "expect": {"layers": {"head": "none"}}}}
    assert len(load_policy(config(tmp_path, value)).expected_layers) == 1


def test_a_policy_shows_in_one_line_what_it_is() -> None:
    policy = load_policy("fp8-dynamic")
    assert repr(policy) == f"<Policy fp8-dynamic: 1 rule, sha256 {policy.sha256[:12]}>"


MIXTRAL = Path("tests/data/models/Mixtral-8x7B-v0.1.json.gz")


def a_plan() -> str:
    return resolve(load_policy("fp8-dynamic"), Inventory.open(MIXTRAL)).to_json()


def test_a_plan_in_the_place_of_a_policy_is_told_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(a_plan(), encoding="utf-8")
    assert problem(path) == f"{path}:1:1: a plan, where a policy is expected"


def test_a_plan_as_python_data_is_told_too() -> None:
    assert problem(json.loads(a_plan())) == "<dict>: a plan, where a policy is expected"


def test_a_plan_that_a_policy_extends_is_told_too(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(a_plan(), encoding="utf-8")
    policy = tmp_path / "policy.yaml"
    policy.write_text("extends: plan.json\n", encoding="utf-8")
    assert problem(policy) == f"{path}:1:1: a plan, where a policy is expected"


def test_a_saved_inventory_or_an_index_in_the_place_of_a_policy_is_told(tmp_path: Path) -> None:
    inventory = tmp_path / "inventory.json"
    Inventory.open(MIXTRAL).save(inventory)
    assert problem(inventory) == f"{inventory}:1:1: a saved inventory, where a policy is expected"
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"metadata": {}, "weight_map": {"lm_head.weight": "model.safetensors"}}')
    assert problem(index) == f"{index}:1:1: the index of a model, where a policy is expected"


def test_a_compressed_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "plan.json.gz"
    path.write_bytes(gzip.compress(a_plan().encode()))
    assert problem(path) == f"{path}: compressed with gzip, as plans and saved inventories may be; a policy is text"
