"""A plan as a file: what the schema promises, reading it back, and files that are damaged or hostile."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyquant import Plan, PolicyQuantError, SourceError, read_plan
from policyquant.inventory.dtypes import DTYPE_BITS
from policyquant.inventory.kinds import KINDS
from policyquant.inventory.layers import NameForm, own_name
from policyquant.plan.plan import ModelInfo, PolicyInfo
from policyquant.plan.read import is_plan, parse_plan
from policyquant.plan.rows import PartRow, Row, RuleRef
from policyquant.plan.write import write_plan
from policyquant.policy.methods import METHODS
from policyquant.policy.scheme import NONE
from policyquant.schemas import plan_schema
from tests.plan.models import MODELS, deepseek, inventory, llama, llama_without_shapes, mixtral, plan, tied_llama

REAL = sorted(path.name.removesuffix(".json.gz") for path in MODELS.glob("*.json.gz"))

POLICIES: dict[str, dict[str, Any]] = {
    "experts": {"layers": {"decoder.*.moe": "fp8", "*.qkv_proj": "none", "*.self_attn": {"kv_cache": "fp8"}}},
    "blocks": {"default": "int8", "layers": {"decoder.{0..1,-1..-1}": "none", "*.down_proj": "fp8"}},
    "refined": {
        "extends": ["fp8-block", "fp8-kv"],
        "layers": {"*.o_proj": {"input": {"group": 64}}, "*.gate_up_proj": {"output": "fp32"}, "head": "fp8"},
    },
}


def reread(resolved: Plan) -> Plan:
    return parse_plan(resolved.to_json().encode(), "plan.json")


# --- the schema ------------------------------------------------------------------------------------------------------

VALIDATOR = jsonschema.Draft202012Validator(plan_schema())


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(plan_schema())


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "model",
    [
        "DeepSeek-V3",
        "Mixtral-8x7B-v0.1",
        "Phi-3-mini-4k-instruct",
        "Qwen2.5-VL-7B-Instruct",
        "gpt-oss-120b",
        "t5-small",
    ],
)
def test_real_plans_are_as_the_schema_says(model: str, policy: str) -> None:
    resolved = plan(inventory(model), **POLICIES[policy])
    document = json.loads(resolved.to_json())
    # One layer of each row: the others differ from it in nothing but their names.
    firsts = {row.form.fill(row.indices[0]) for row in resolved.rows}
    document["layers"] = [layer for layer in document["layers"] if layer["name"] in firsts]
    VALIDATOR.validate(document)


@pytest.mark.parametrize("model", [llama_without_shapes(), tied_llama(), deepseek("F8_E4M3")], ids=lambda m: m.name)
def test_plans_of_odd_models_are_as_the_schema_says(model: Any) -> None:
    VALIDATOR.validate(json.loads(plan(model, **POLICIES["refined"]).to_json()))


def test_the_schema_knows_the_words_of_the_code() -> None:
    layer = plan_schema()["$defs"]["layer"]["properties"]
    assert layer["method"]["enum"] == list(METHODS)
    assert layer["kind"]["enum"] == list(KINDS)
    assert layer["dtype"]["enum"] == [*DTYPE_BITS, None]


def test_everything_in_the_schema_is_described() -> None:
    def undescribed(path: str, properties: dict[str, Any]) -> list[str]:
        found = []
        for name, value in properties.items():
            if "description" not in value and "$ref" not in value and "anyOf" not in value:
                found.append(f"{path}.{name}")
            found += undescribed(f"{path}.{name}", value.get("properties", {}))
        return found

    schema = plan_schema()
    assert undescribed("", schema["properties"]) == []
    defined = {name: value for name, value in schema["$defs"].items() if name != "total"}
    assert undescribed("$defs", defined) == []


# --- reading back ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "policy"),
    [
        (model, policy)
        for model in REAL
        for policy in POLICIES
        if policy == "refined"
        or model not in ("DeepSeek-V3", "Kimi-K2-Instruct", "Qwen3-235B-A22B")  # Two seconds each.
    ],
)
def test_what_is_read_is_written_again_byte_for_byte(model: str, policy: str) -> None:
    resolved = plan(inventory(model), **POLICIES[policy])
    text = resolved.to_json()
    again = parse_plan(text.encode(), "plan.json")
    assert again.to_json() == text
    assert len(again.rows) <= len(resolved.rows)


@pytest.mark.parametrize("model", ["Mixtral-8x7B-v0.1", "gpt-oss-120b", "Phi-3-mini-4k-instruct", "t5-small"])
def test_every_layer_of_a_plan_is_read_as_it_was(model: str) -> None:
    resolved = plan(inventory(model), **POLICIES["refined"])
    again = reread(resolved)
    assert list(again.layers()) == list(resolved.layers())
    assert (again.model, again.policy, again.findings) == (resolved.model, resolved.policy, resolved.findings)
    assert again.total == resolved.total


def test_groups_of_prediction_layers_count_from_zero_again() -> None:
    again = reread(plan(deepseek(), {"*.moe": "fp8"}))
    assert again["model.layers.2.mlp.experts.3.up_proj"].group == "mtp.0.moe.experts.gate_up_proj"
    assert again["model.layers.1.mlp.experts.3.up_proj"].group == "decoder.1.moe.experts.gate_up_proj"


RELAID: dict[str, Callable[[Any], str]] = {
    "indented by two": lambda document: json.dumps(document, indent=2),
    "one line": lambda document: json.dumps(document, separators=(",", ":")),
    "sorted keys": lambda document: json.dumps(document, indent=1, sort_keys=True),
    "Windows line ends": lambda document: json.dumps(document, indent=1).replace("\n", "\r\n"),
    "byte order mark": lambda document: "\ufeff" + json.dumps(document),
}


@pytest.mark.parametrize("layout", RELAID)
def test_a_plan_that_another_tool_has_laid_out_anew_is_the_same_plan(layout: str) -> None:
    text = plan(deepseek(), **POLICIES["refined"]).to_json()
    assert parse_plan(RELAID[layout](json.loads(text)).encode(), "plan.json").to_json() == text


def test_a_filtered_listing_is_read_too() -> None:
    resolved = plan(mixtral(), {"*.moe": "fp8"})
    some = "".join(resolved.json_chunks([row for row in resolved.rows if row.kind == "moe"]))
    assert len(parse_plan(some.encode(), "plan.json")) == 24
    none = "".join(resolved.json_chunks([]))
    assert parse_plan(none.encode(), "plan.json").to_json() == none


@pytest.mark.parametrize("name", ["plan.json", "plan.json.gz"])
def test_a_plan_on_disk(tmp_path: Path, name: str) -> None:
    resolved = plan(mixtral(), {"*.moe": "fp8"})
    write_plan(resolved, tmp_path / name)
    assert is_plan(tmp_path / name)
    assert read_plan(tmp_path / name).to_json() == resolved.to_json()
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes().startswith(b"\x1f\x8b") == name.endswith(".gz")


def test_a_plan_that_cannot_be_written_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "plan.json").mkdir()
    with pytest.raises(PolicyQuantError, match=r"plan\.json: cannot be written"):
        write_plan(plan(llama()), tmp_path / "plan.json")
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_what_a_plan_from_a_file_can_be_asked() -> None:
    again = reread(plan(mixtral(), {"decoder.*.moe": "fp8"}))
    assert again["model.layers.1.block_sparse_moe.experts.3.w2"].method == "fp8"
    assert "model.layers.1.mlp" not in again
    with pytest.raises(KeyError, match=r"did you mean 'model\.layers\.1\.self_attn\.q_proj'"):
        again["model.layers.1.self_attn.q_prj"]
    with pytest.raises(PolicyQuantError, match="explain the model with the policy instead"):
        again.explain("model.layers.1.self_attn.q_proj")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("policy.yaml", b"version: 1\nlayers: {'*': fp8}\n"),
        ("policy.json", b'{"version": 1, "layers": {"*": "fp8"}}'),
        ("index.json", b'{"metadata": {}, "weight_map": {}}'),
        ("empty.json", b""),
    ],
)
def test_other_files_are_no_plans(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    assert not is_plan(tmp_path / name)
    assert not is_plan(tmp_path)
    assert not is_plan(tmp_path / "missing.json")


# --- any names, any texts --------------------------------------------------------------------------------------------

words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=".#"), min_size=1, max_size=6).filter(
    lambda word: not word.isdecimal()
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
tricky = st.one_of(texts, st.sampled_from(["100 %d %s", "\x00name\x00", "\\u0000", '"group": "x"', "#", "\n ],\n"]))


@st.composite
def name_forms(draw: st.DrawFn, width: int, least: int) -> NameForm:
    """A name that takes its numbers from any of a layer's indices, less something."""
    pieces = draw(st.lists(words, min_size=1, max_size=3))
    positions = draw(st.lists(st.integers(0, width - 1), max_size=2)) if width else []
    offsets = [draw(st.integers(-3, least)) for _ in positions]
    return NameForm(".".join(pieces + ["#"] * len(positions)), tuple(positions), tuple(offsets))


@st.composite
def rows(draw: st.DrawFn, number: int) -> Row:
    width = draw(st.integers(0, 3))
    least = draw(st.integers(0, 70))
    indices = sorted(
        draw(st.sets(st.tuples(*[st.integers(least, least + 4)] * width), min_size=1, max_size=6)) if width else {()}
    )
    # Numbered, since no two layers of a plan have one name.
    form = own_name(".".join([f"row{number}x", *draw(st.lists(words, max_size=2)), *["#"] * width]))
    rule = RuleRef(draw(tricky), draw(tricky), 1, 2, "checkpoint")
    size = st.none() | st.integers(0, 2**40)
    return Row(
        form=form,
        indices=indices,
        kind="linear",
        shape=draw(st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9))),
        dtype=draw(st.sampled_from([None, "BF16"])),
        stored=draw(st.none() | tricky),
        scheme=NONE,
        decided_by="rule",
        rule=draw(st.none() | st.just(rule)),
        refined_by=(),
        beaten=tuple([rule] * draw(st.integers(0, 2))),
        group=draw(st.none() | name_forms(width, least)),
        parts=tuple(PartRow(form, None) for form in draw(st.lists(name_forms(width, least), max_size=2))),
        parameters=draw(size),
        bytes_before=draw(size),
        bytes_after=draw(size),
    )


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    model = ModelInfo(draw(tricky), draw(st.none() | tricky), draw(tricky), 0, None, None)
    all_rows = tuple(draw(rows(number)) for number in range(draw(st.integers(0, 4))))
    return Plan(model, PolicyInfo(draw(tricky), "0" * 64), all_rows, ())


@given(plans())
def test_any_plan_is_json_and_is_read_back(any_plan: Plan) -> None:
    text = any_plan.to_json()
    VALIDATOR.validate(json.loads(text))
    again = parse_plan(text.encode(), "plan.json")
    assert again.to_json() == text
    assert len(again.rows) <= len(any_plan.rows)


# --- files that are not as they should be ----------------------------------------------------------------------------


def line_of(word: str) -> int:
    """The line of the small plan in which a word comes first."""
    return next(number for number, line in enumerate(SMALL.splitlines(), 1) if word in line)


SMALL = plan(llama(blocks=1), {"*.mlp": {"method": "fp8_block"}, "*.self_attn": {"kv_cache": "fp8"}}).to_json()


def layer_of(document: dict[str, Any], name: str) -> dict[str, Any]:
    layer: dict[str, Any] = next(each for each in document["layers"] if each["name"].endswith(name))
    return layer


def changed(change: Callable[[dict[str, Any]], object]) -> str:
    """What is wrong with a good plan after one change to it."""
    document = json.loads(SMALL)
    change(document)
    with pytest.raises(SourceError) as error:
        parse_plan(json.dumps(document, indent=2).encode(), "plan.json")
    return str(error.value)


def put(place: str, key: str, value: object) -> Callable[[dict[str, Any]], object]:
    """Sets a key of the layer whose name ends in `place`, or of one of the other objects."""

    def change(document: dict[str, Any]) -> None:
        target = document[place] if place in document else layer_of(document, place) if place else document
        *path, last = key.split("/")
        for step in path:
            target = target[step]
        target[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("", "version", 2), "version: expected 1, which this policyquant reads, found 2"),
        (put("", "version", True), "version: expected 1, which this policyquant reads, found true"),
        (put("", "generator", 7), "generator: expected a string, found 7"),
        (put("", "generater", "x"), "unknown key \"generater\"; did you mean 'generator'?"),
        (lambda document: document.pop("policy"), "the key 'policy' is missing"),
        (lambda document: document.pop("layers"), "no plan: expected an object with"),
        (put("", "layers", {}), "layers: expected a list, found an object"),
        (put("model", "layers", -1), "model.layers: expected a whole number that is not negative and below 2**63"),
        (put("model", "bytes", 2**63), "model.bytes: expected a whole number"),
        (put("model", "name", None), "model.name: expected a string, found null"),
        (put("policy", "sha256", "abc"), 'policy.sha256: expected 64 hexadecimal digits, found "abc"'),
        (put("", "findings", [{}]), "findings[0]: the key 'code' is missing"),
        (put("summary", "layers", 1), "summary.layers: expected 14, what the layers add up to, found 1"),
        (put("summary", "methods/fp8_block/bytes_after", 0), "summary.methods.fp8_block.bytes_after: expected "),
        (put("summary", "methods/fp8", {}), 'summary.methods: unknown key "fp8"'),
        (lambda document: document["layers"].append(3), "layers[14]: expected an object, found 3"),
        (lambda document: document["layers"].append(document["layers"][0]), "layers[14].name: a layer of this name"),
        (put("down_proj", "name", 5), "name: expected a string, found 5"),
        (put("down_proj", "name", "a.#.b"), "name: the name 'a.#' holds '#'"),
        (put("down_proj", "name", ".".join("123456789")), "name: a name with more than 8 indices"),
        (put("down_proj", "name", "a." * 300), "name: a name of more than 64 parts"),
        (put("down_proj", "kind", "linaer"), "kind: expected a kind, found \"linaer\"; did you mean 'linear'?"),
        (put("down_proj", "kind", ["linear"]), "kind: expected a kind, found a list (known: linear, moe"),
        (put("down_proj", "shape", [1, -1]), "shape[1]: expected a whole number"),
        (put("down_proj", "shape", [1.0]), "shape[0]: expected a whole number that is not negative and below 2**63, "),
        (put("down_proj", "shape", [True]), "shape[0]: expected a whole number"),
        (put("down_proj", "dtype", "BF61"), "dtype: expected a dtype of safetensors, found \"BF61\"; did you mean"),
        (put("down_proj", "method", "fp9"), "method: expected a method, found \"fp9\"; did you mean 'fp8'?"),
        (put("down_proj", "scheme/weight", None), "scheme: the method 'fp8_block' quantizes the weight"),
        (put("input_layernorm", "method", "fp8_block"), "scheme: the method 'fp8_block' quantizes the weight"),
        (put("down_proj", "kind", "norm"), "the method 'fp8_block' does not take norm layers"),
        (put("down_proj", "scheme/weight/dtype", "fp8"), "scheme.weight.dtype: expected a quantized dtype, found"),
        (put("down_proj", "scheme/weight/block", [128]), "scheme.weight.block: expected two sizes, found a list"),
        (put("down_proj", "scheme/weight/block", [0, 1]), "scheme.weight.block[0]: expected a size above 0, found 0"),
        (put("down_proj", "scheme/input/group", 1.5), "scheme.input.group: expected a whole number"),
        (put("down_proj", "scheme/input/granularity", "token"), "scheme.input: granularity 'token' contradicts"),
        (put("down_proj", "scheme/input/scale", float("inf")), "scheme.input.scale: expected a finite number above 0"),
        (put("down_proj", "scheme/input/scale", float("nan")), "scheme.input.scale: expected a finite number above 0"),
        (put("down_proj", "scheme/input/scale", 10**400), "scheme.input.scale: expected a scale that float32 can hold"),
        (put("down_proj", "scheme/input/scale", 1e-50), "scheme.input.scale: expected a scale that float32 can hold"),
        (put("down_proj", "scheme/input/scheme", "statik"), "scheme.input.scheme: expected a scheme, found \"statik\""),
        (put("down_proj", "output", "float8_e4m3fn"), "output: expected a dtype, found"),
        (put("down_proj", "kv_cache", {"dtype": "int8", "granularity": "head"}), "linear layers have no KV cache"),
        (put("down_proj", "decided_by", "luck"), "decided_by: expected what decided, found \"luck\" (known: rule"),
        (put("down_proj", "rule/line", "3"), 'rule.line: expected a whole number'),
        (put("down_proj", "rule/namespace", "modul"), "rule.namespace: expected a namespace, found \"modul\""),
        (put("down_proj", "beaten", {}), "beaten: expected a list, found an object"),
        (put("down_proj", "group", 3), "group: expected a string, found 3"),
        (put("down_proj", "parts", [3]), "parts[0]: expected an object, found 3"),
        (put("down_proj", "parts", [{"name": "x"}]), "parts[0]: the key 'shape' is missing"),
        (put("down_proj", "extra", 1), 'unknown key "extra"'),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_plan_is_said_with_its_place(
    change: Callable[[dict[str, Any]], object], message: str
) -> None:
    found = changed(change)
    assert found.startswith("plan.json: ")
    assert message in found


def test_in_our_own_layout_the_line_is_told_too() -> None:
    line = line_of('"method": "fp8_block"')
    with pytest.raises(SourceError, match=rf"^plan\.json:{line}: layers\[\d+\]\.method: expected a method, found"):
        parse_plan(SMALL.replace('"method": "fp8_block"', '"method": "fp9"', 1).encode(), "plan.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "plan.json: empty; expected JSON"),
        ("[]", "plan.json: no plan: expected an object with"),
        ('{"version": 1, "layers": {"*": "fp8"}}', "plan.json: no plan: expected an object with"),
        (SMALL[:-100], "plan.json:"),
        (SMALL[: len(SMALL) // 2], "plan.json:"),
        (SMALL.replace('"kind": "norm"', '"kind": "norm", "kind": "norm"', 1), 'the key "kind" stands twice'),
        (SMALL.replace('"version": 1', '"version": 1, "version": 1', 1), "the key 'version' stands twice"),
        (SMALL.replace('"stored": null', '"stored": "\\ud800"', 1), "half of a surrogate pair"),
        (SMALL.replace('"stored": null', '"stored": ' + "[" * 100_000, 1), "nested too deeply"),
        (SMALL.replace('"stored": null', f'"stored": {"[" * 900}{"]" * 900}', 1), "stored: expected a string or null"),
        (SMALL.replace('"stored": null', f'"stored": [{"0," * 600_000}0]', 1), "more than 500,000 values"),
        (SMALL.replace('"parameters": ', '"parameters": 9' + "9" * 5000, 1), "plan.json:"),
        (SMALL.replace('"summary": {', '"summary": {,', 1), f"plan.json:{line_of('summary')}:"),
    ],
)  # fmt: skip
def test_damaged_and_hostile_files(text: str, message: str) -> None:
    with pytest.raises(SourceError) as error:
        parse_plan(text.encode(), "plan.json")
    assert message in str(error.value)
    assert len(str(error.value)) < 500


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(gzip.compress(b" " * (30 * 2**20), compresslevel=1) * 10)
    with pytest.raises(SourceError, match="unpacks to more than"):
        read_plan(tmp_path / "plan.json")


@given(st.integers(0, len(SMALL)), st.integers(0, 40), st.binary(max_size=12))
def test_whatever_is_done_to_a_file_there_is_an_error_or_a_plan(start: int, length: int, instead: bytes) -> None:
    data = SMALL.encode()
    try:
        found = parse_plan(data[:start] + instead + data[start + length :], "plan.json")
    except SourceError:
        return
    VALIDATOR.validate(json.loads(found.to_json()))
