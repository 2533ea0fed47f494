"""Saved inventories: policyquant's own form, and plain lists of tensors."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyquant.errors import PolicyQuantError, SourceError
from policyquant.findings import Finding
from policyquant.inventory.collapse import collapse
from policyquant.inventory.dtypes import DTYPE_BITS
from policyquant.inventory.layers import StoredModel
from policyquant.inventory.saved import parse_inventory, save_inventory
from policyquant.inventory.sources import open_source
from tests.inventory.files_on_disk import CHECKPOINTS, MODELS

TINY: dict[str, Any] = {
    "format": "policyquant-inventory",
    "version": 1,
    "name": "tiny",
    "source": "tiny.safetensors",
    "naming": "checkpoint",
    "config": {"model_type": "llama"},
    "sets": [{"template": "layers.#.up", "indices": [[0], [1]], "tensors": [["weight", "BF16", [8, 4]]]}],
}


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.json.gz")), ids=lambda path: path.name.removesuffix(".json.gz"))
def test_a_model_that_is_saved_and_read_is_the_same(tmp_path: Path, path: Path) -> None:
    model = open_source(path)
    save_inventory(model, tmp_path / "saved.json.gz")
    assert open_source(tmp_path / "saved.json.gz") == model


def test_findings_are_saved(tmp_path: Path) -> None:
    model = open_source(CHECKPOINTS / "sharded_tensor_in_other_shard")
    save_inventory(model, tmp_path / "saved.json")
    assert [finding for finding in model.findings if isinstance(finding, Finding)] == list(
        open_source(tmp_path / "saved.json").findings
    )


def test_a_large_model_is_a_small_file(tmp_path: Path) -> None:
    save_inventory(open_source(MODELS / "Kimi-K2-Instruct.json.gz"), tmp_path / "kimi.json.gz")
    assert (tmp_path / "kimi.json.gz").stat().st_size < 300_000


def test_saving_is_reproducible(tmp_path: Path) -> None:
    model = open_source(MODELS / "gpt2.json.gz")
    save_inventory(model, tmp_path / "one.json.gz")
    save_inventory(model, tmp_path / "two.json.gz")
    assert (tmp_path / "one.json.gz").read_bytes() == (tmp_path / "two.json.gz").read_bytes()


def test_nothing_is_left_of_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(PolicyQuantError, match="taken: cannot be written"):
        save_inventory(open_source(MODELS / "gpt2.json.gz"), tmp_path / "taken")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_a_plain_list_of_tensors_is_read_as_it_is() -> None:
    model = open_source(MODELS / "gpt-oss-120b.json.gz")
    assert model.naming == "checkpoint"
    assert model.config["model_type"] == "gpt_oss"
    assert model.module_types["model.layers.0.mlp.experts"] == "GptOssExperts"
    assert sum(len(stored.indices) * len(stored.tensors) for stored in model.sets) == 687


def test_a_plain_list_may_lack_everything_but_its_tensors() -> None:
    model = parse_inventory(b'{"tensors": {"a.weight": ["BF16", [2, 3]], "b": [null, null]}}', "x.json")
    assert [(stored.template, stored.tensors) for stored in model.sets] == [
        ("a", (("weight", "BF16", (2, 3)),)),
        ("", (("b", None, None),)),
    ]


def test_an_inventory_need_not_be_called_json(tmp_path: Path) -> None:
    (tmp_path / "layers").write_bytes(gzip.compress(json.dumps(TINY).encode()))
    assert open_source(tmp_path / "layers").name == "tiny"


def changed(**changes: object) -> dict[str, Any]:
    return {**TINY, **changes}


def with_set(**changes: object) -> dict[str, Any]:
    return changed(sets=[{**TINY["sets"][0], **changes}])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (changed(version=2), "version 2 of policyquant-inventory; this policyquant reads 1"),
        (changed(version=True), "version True"),
        (changed(naming="runtime"), "naming is 'runtime'; expected 'checkpoint' or 'module'"),
        (changed(name=3), "name: expected a string, found 3"),
        (changed(config=[]), "config: expected an object, found []"),
        (changed(sets={}), "sets: expected a list, found {}"),
        (changed(sets=[3]), "sets: found 3; expected an object"),
        (with_set(template="layers.0.up"), "no name template"),
        (with_set(template="layers.a#.up"), "no name template"),
        (with_set(template="layers.up"), "indices: found [0]; expected 0 integers"),
        (with_set(indices=[[0], [True]]), "indices: found [True]"),
        (with_set(indices=[[-1]]), "indices: found [-1]"),
        (with_set(indices=[[0], [0]]), "the layer at [0] stands twice"),
        (with_set(indices=[]), "no indices"),
        (with_set(tensors=[["weight", "BF15", [8]]]), "unknown dtype 'BF15'"),
        (with_set(tensors=[["weight", "BF16", [8.0]]]), "shape is [8.0]"),
        (with_set(tensors=[["weight", "BF16"]]), "expected [suffix, dtype, shape]"),
        (with_set(tensors=[["weight", "BF16", [8]]] * 2), "a tensor stands twice"),
        (changed(sets=TINY["sets"] * 2), "the layer at [0] stands twice"),
        (changed(module_types={"a": 1}), "module_types: expected an object of strings"),
        (changed(findings=[{"code": "PQ401"}]), "findings: found"),
        ({"tensors": {"a.weight": "BF16"}}, "tensors: 'a.weight' is 'BF16'; expected [dtype, shape]"),
        ({"tensors": {"a.weight": ["BF16", [-1]]}}, "shape is [-1]"),
        ({"tensors": [], "format": "other"}, "no inventory"),
        ({"layers": []}, "no inventory"),
    ],
)
def test_a_malformed_inventory_is_refused(value: object, message: str) -> None:
    with pytest.raises(SourceError) as refused:
        parse_inventory(json.dumps(value).encode(), "x.json")
    assert message in str(refused.value)


def test_a_file_that_unpacks_to_more_than_any_inventory_is_refused(tmp_path: Path) -> None:
    """150 MB of spaces are 650 KB of gzip."""
    path = tmp_path / "bomb.json.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(150):
            file.write(b" " * 1_000_000)
    with pytest.raises(SourceError, match="unpacks to more than 134,217,728 bytes"):
        open_source(path)


@pytest.mark.parametrize(("keep", "message"), [(40, "end early; an incomplete download"), (12, "end early")])
def test_a_truncated_file_is_refused(tmp_path: Path, keep: int, message: str) -> None:
    path = tmp_path / "cut.json.gz"
    path.write_bytes(gzip.compress(json.dumps(TINY).encode())[:keep])
    with pytest.raises(SourceError, match=message):
        open_source(path)


def test_gzip_files_written_one_after_another_are_one_file(tmp_path: Path) -> None:
    path = tmp_path / "two.json.gz"
    text = json.dumps(TINY).encode()
    path.write_bytes(gzip.compress(text[:50]) + gzip.compress(text[50:]) + bytes(10))
    assert open_source(path).name == "tiny"


def test_a_file_of_very_many_gzip_files_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "many.json.gz"
    path.write_bytes(gzip.compress(b" ") * 1000)
    with pytest.raises(SourceError, match="more than 64 gzip files"):
        open_source(path)


def test_damaged_compressed_data_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "damaged.json.gz"
    path.write_bytes(b"\x1f\x8b\x08\x00" + b"\xff" * 40)
    with pytest.raises(SourceError, match="damaged gzip data"):
        open_source(path)


# A name that begins with its only dot has no layer, as a name without dot has none.
names = st.text("ab01.", min_size=1, max_size=8).filter(lambda name: name.rfind(".") != 0)
tensors = st.dictionaries(
    names,
    st.tuples(
        st.none() | st.sampled_from([*DTYPE_BITS]), st.none() | st.lists(st.integers(0, 5), max_size=3).map(tuple)
    ),
    max_size=8,
)


@given(tensors, st.dictionaries(names, st.integers() | st.text(max_size=3)), st.sampled_from(["checkpoint", "module"]))
def test_any_model_that_is_saved_and_read_is_the_same(
    tmp_path_factory: pytest.TempPathFactory, stored: dict[str, Any], config: dict[str, object], naming: Any
) -> None:
    path = tmp_path_factory.mktemp("saved") / "model.json"
    sets = collapse((name, *form) for name, form in stored.items())
    findings = (Finding("PQ401", "warning", "…", ("a",), ("p.yaml:1:1",)),)
    model = StoredModel("ä", "x", config, sets, naming, {"a": "Linear"}, findings, {"b": "a"})
    save_inventory(model, path)
    assert open_source(path) == model
