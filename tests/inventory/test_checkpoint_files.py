"""Directories: an index and its shards, or one file of weights."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from policyquant.errors import SourceError
from policyquant.inventory.layers import StoredModel, own_name
from policyquant.inventory.sources import open_source
from policyquant.inventory.stored_formats import recognise
from tests.inventory.files_on_disk import CHECKPOINTS, safetensors_bytes, write_index, write_model

ONE = "model-00001-of-00002.safetensors"
TWO = "model-00002-of-00002.safetensors"
Q, K = "model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight"


def findings(model: StoredModel) -> list[tuple[str, str, str]]:
    return [(finding.code, finding.level, finding.message) for finding in model.findings]


def tensor_names(model: StoredModel) -> set[str]:
    return {
        f"{name}.{tensor.suffix}"
        for stored in model.sets
        for name in own_name(stored.template).fill_all(stored.indices)
        for tensor in stored.tensors
    }


EXPECTED = {
    # Zero scales and other values of weights need the weights; an inventory reads none.
    "sharded_fp8_scale_other_shard": [],
    "sharded_index_no_metadata": [],
    "sharded_ok": [],
    "sharded_stray_single_file": [("PQ402", "warning", "model.safetensors is unreferenced")],
    "sharded_tensor_in_other_shard": [("PQ403", "warning", f"{K}: claimed in {TWO}, found in {ONE}")],
    "sharded_total_size_wrong": [("PQ401", "warning", "metadata.total_size 999, actual 48")],
    "sharded_unindexed_duplicate": [
        ("PQ406", "warning", f"{Q}: taken from {ONE}, as indexed; a duplicate is in {TWO}"),
        ("PQ405", "warning", f"stale.weight: in {TWO}, not listed in model.safetensors.index.json"),
    ],
    "single_fp8_missing_scale": [("PQ407", "error", f"FP8 tensor without scale: {Q}")],
    # What config.json says of ties is compared with the tensors where architectures are known, not here.
    "single_tied_flag_but_head_stored": [],
    "single_tied_head": [],
}
REFUSED = {
    "sharded_index_path_escape": "'../outside.safetensors' leaves the index's directory",
    "sharded_missing_shard": f"1 of 2 shards missing: {TWO}; an incomplete download?",
}


@pytest.mark.parametrize("name", EXPECTED)
def test_each_checkpoint_of_the_collection_gives_its_findings(name: str) -> None:
    found = findings(open_source(CHECKPOINTS / name))
    assert [(code, level) for code, level, _ in found] == [(code, level) for code, level, _ in EXPECTED[name]]
    for (_, _, message), (_, _, part) in zip(found, EXPECTED[name], strict=True):
        assert part in message


@pytest.mark.parametrize(("name", "message"), REFUSED.items())
def test_a_checkpoint_that_cannot_be_trusted_is_refused(name: str, message: str) -> None:
    with pytest.raises(SourceError) as refused:
        open_source(CHECKPOINTS / name)
    assert message in str(refused.value)


def test_every_checkpoint_of_the_collection_has_an_expectation() -> None:
    assert {path.name for path in CHECKPOINTS.iterdir() if path.is_dir()} == EXPECTED.keys() | REFUSED.keys()


def test_a_scale_in_another_shard_belongs_to_its_weight() -> None:
    model = open_source(CHECKPOINTS / "sharded_fp8_scale_other_shard")
    assert [tensor.suffix for tensor in model.sets[0].tensors] == ["weight", "weight_scale_inv"]


def test_the_index_decides_which_tensors_the_model_has() -> None:
    assert tensor_names(open_source(CHECKPOINTS / "sharded_unindexed_duplicate")) == {Q, K}


def test_a_tensor_found_in_another_shard_is_part_of_the_model() -> None:
    assert K in tensor_names(open_source(CHECKPOINTS / "sharded_tensor_in_other_shard"))


def test_a_tensor_that_no_shard_has_is_an_error_and_no_part_of_the_model(tmp_path: Path) -> None:
    write_model(tmp_path, {"model.norm.weight": ("BF16", [4])}, {})
    write_index(tmp_path, {"model.norm.weight": "model.safetensors", "mtp.fc.weight": "model.safetensors"})
    model = open_source(tmp_path)
    assert findings(model) == [("PQ404", "error", "mtp.fc.weight: claimed in model.safetensors, found in no shard")]
    assert tensor_names(model) == {"model.norm.weight"}


def test_many_tensors_with_one_fault_make_one_finding(tmp_path: Path) -> None:
    write_model(tmp_path, {f"layers.{i}.weight": ("BF16", [4]) for i in range(100)}, {})
    write_index(tmp_path, {"layers.0.weight": "model.safetensors"})
    ((code, _, message),) = findings(open_source(tmp_path))
    assert code == "PQ405"
    assert "layers.5.weight and 94 more" in message


def test_shards_may_be_links_out_of_the_directory(tmp_path: Path) -> None:
    """The Hub's cache keeps the files elsewhere."""
    write_model(tmp_path / "blobs", {"a.weight": ("BF16", [4])}, name="0123abcd")
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    (snapshot / ONE).symlink_to("../blobs/0123abcd")
    write_index(snapshot, {"a.weight": ONE})
    assert tensor_names(open_source(snapshot)) == {"a.weight"}


@pytest.mark.parametrize(
    "shard",
    [
        "../x.safetensors",
        "/etc/x.safetensors",
        "a/b.safetensors",
        "..",
        ".",
        "",
        "C:x.safetensors",
        "a\\b.safetensors",
        "x\0.safetensors",
        "pytorch_model.bin",
    ],
)
def test_a_shard_must_be_a_plain_safetensors_file(tmp_path: Path, shard: str) -> None:
    write_index(tmp_path, {"a.weight": shard})
    with pytest.raises(SourceError, match=r"refused|never opened"):
        open_source(tmp_path)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("[]", "no index"),
        ('{"weight_map": []}', "no index"),
        ('{"weight_map": {}}', "weight_map is empty"),
        ('{"weight_map": {"a.weight": 3}}', "weight_map gives 3 for 'a.weight'"),
        ('{"weight_map": {"a.weight": ["x"]}}', "expected a shard's file name"),
        ('{"weight_map": {"a": "x.safetensors",\n "a": "y.safetensors"}}', "index.json:2:2: the key 'a' stands twice"),
        ('{"weight_map": {"a": "x.safetensors"},}', ":1:39: "),
        ("", "empty; expected JSON"),
    ],
)
def test_a_malformed_index_is_refused(tmp_path: Path, index: str, message: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(SourceError) as refused:
        open_source(tmp_path)
    assert message in str(refused.value)


@pytest.mark.parametrize("total", ["48", 48.5, None, [48], 47])
def test_a_total_size_of_any_kind_is_compared_and_never_fatal(tmp_path: Path, total: object) -> None:
    write_model(tmp_path, {"a.weight": ("BF16", [4, 6])}, {})
    write_index(tmp_path, {"a.weight": "model.safetensors"}, total)
    assert [code for code, *_ in findings(open_source(tmp_path))] == ([] if total is None else ["PQ401"])


def test_without_an_index_numbered_shards_are_read_together(tmp_path: Path) -> None:
    write_model(tmp_path, {"a.weight": ("BF16", [4])}, {}, name=ONE)
    write_model(tmp_path, {"b.weight": ("BF16", [4])}, name=TWO)
    model = open_source(tmp_path)
    assert tensor_names(model) == {"a.weight", "b.weight"}
    assert [code for code, *_ in findings(model)] == ["PQ435"]


def test_without_an_index_a_missing_shard_is_known_by_its_number(tmp_path: Path) -> None:
    for number in (1, 3):
        write_model(tmp_path, {"a.weight": ("BF16", [4])}, name=f"model-0000{number}-of-00003.safetensors")
    with pytest.raises(SourceError, match=r"1 of 3 shards missing: model-00002-of-00003"):
        open_source(tmp_path)


def test_without_an_index_unrelated_files_are_not_guessed_at(tmp_path: Path) -> None:
    for name in ("a.safetensors", "b.safetensors"):
        write_model(tmp_path, {"a.weight": ("BF16", [4])}, name=name)
    with pytest.raises(SourceError, match=r"2 safetensors files, no index.*name one of them"):
        open_source(tmp_path)


def test_a_directory_with_pickles_only_says_that_they_are_never_opened(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(SourceError, match=r"pytorch_model\.bin, which may be pickles and are never opened"):
        open_source(tmp_path)


def test_an_empty_directory_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no \.safetensors file and no model\.safetensors\.index\.json"):
        open_source(tmp_path)


def test_a_model_without_a_config_is_noted(tmp_path: Path) -> None:
    model = open_source(write_model(tmp_path, {"a.weight": ("BF16", [4])}))
    assert [code for code, *_ in findings(model)] == ["PQ434"]
    assert model.config == {}


def test_a_file_of_weights_without_a_config_beside_it_is_named(tmp_path: Path) -> None:
    path = write_model(tmp_path, {"a.weight": ("BF16", [4])}) / "model.safetensors"
    (finding,) = open_source(path).findings
    assert finding.message.startswith(f"{path}: no config.json beside it; ")


def test_a_file_of_weights_is_read_with_the_config_beside_it(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "tiny", {"a.weight": ("BF16", [4])}, {"model_type": "llama"})
    model = open_source(directory / "model.safetensors")
    assert (model.name, model.config) == ("tiny", {"model_type": "llama"})


def test_an_index_alone_tells_names_only(tmp_path: Path) -> None:
    write_model(tmp_path, {"layers.0.weight": ("BF16", [4]), "layers.1.weight": ("BF16", [4])}, {"model_type": "x"})
    index = write_index(tmp_path, {"layers.0.weight": "model.safetensors", "layers.1.weight": "model.safetensors"})
    model = open_source(index)
    assert model.sets == ((("layers.#", ((0,), (1,)), (("weight", None, None),))),)
    assert [code for code, *_ in findings(model)] == ["PQ437"]
    assert model.config == {"model_type": "x"}


def test_an_index_alone_needs_no_shards(tmp_path: Path) -> None:
    index = write_index(tmp_path, {"a.weight": ONE}, 8)
    assert tensor_names(open_source(index)) == {"a.weight"}


def test_a_directory_whose_shards_are_all_missing_is_incomplete(tmp_path: Path) -> None:
    write_index(tmp_path, {f"layers.{i}.weight": f"model-{i:05}-of-00009.safetensors" for i in range(9)})
    with pytest.raises(SourceError, match=r"9 of 9 shards missing: .* and 4 more; an incomplete download"):
        open_source(tmp_path)


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    (tmp_path / ONE).write_bytes(safetensors_bytes({}, 3))
    write_index(tmp_path, {"a.weight": ONE})
    with pytest.raises(SourceError, match=ONE):
        open_source(tmp_path)


def test_a_name_with_the_mark_for_indices_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path, {"layers.a#b.weight": ("BF16", [4])})
    with pytest.raises(SourceError, match="holds '#', which stands for indices"):
        open_source(tmp_path)


def test_sets_are_listed_as_the_index_lists_tensors(tmp_path: Path) -> None:
    write_model(tmp_path, {"z.weight": ("BF16", [4]), "a.weight": ("BF16", [4])}, {})
    write_index(tmp_path, {"a.weight": "model.safetensors", "z.weight": "model.safetensors"})
    assert [stored.template for stored in open_source(tmp_path).sets] == ["a", "z"]
    assert json.loads((tmp_path / "config.json").read_text()) == {}


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({"model_type": "llama"}, "fp8"),
        ({"quantization_config": {}}, "fp8"),
        ({"quantization_config": {"format": "int-quantized"}}, "int8"),
    ],
)
def test_modelopts_file_is_asked_if_the_config_says_nothing(
    tmp_path: Path, config: dict[str, object], method: str
) -> None:
    index = write_index(tmp_path, {"a.weight": ONE, "a.weight_scale": ONE})
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "FP8"}}))
    model = open_source(index)
    (weight,) = recognise(model.sets[0], model.config).weights
    assert weight.scheme is not None
    assert weight.scheme.method == method


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may look everywhere")
def test_a_directory_that_may_be_listed_but_not_entered_is_refused(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "model", {"a.weight": ("BF16", [4])}, {})
    directory.chmod(0o600)
    try:
        with pytest.raises(SourceError, match=r"config\.json: cannot be read: Permission denied"):
            open_source(directory)
    finally:
        directory.chmod(0o700)
