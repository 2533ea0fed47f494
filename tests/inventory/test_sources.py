"""What can be opened, and what is said about that which cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from policyquant.errors import SourceError
from policyquant.inventory.sources import open_source
from policyquant.inventory.tensor_list import from_tensors
from tests.inventory.files_on_disk import MODELS, write_index, write_model


def test_a_missing_path_gets_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "Mixtral-8x7B").mkdir()
    with pytest.raises(SourceError, match=r"no such file or directory; did you mean '.*/Mixtral-8x7B'\?"):
        open_source(tmp_path / "Mixtral-8x7b")


def test_a_missing_path_that_reads_like_a_repository_gets_its_address() -> None:
    with pytest.raises(SourceError, match="for a repository of the Hugging Face Hub write hf://mistralai/Mixtral-8x7B"):
        open_source("mistralai/Mixtral-8x7B")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("model.bin", b"", "may be a Python pickle, which is never opened"),
        ("model.gguf", b"GGUF", "GGUF files are not read"),
        ("config.json", b'{"model_type": "llama"}', "a config, which lists no layers"),
        ("notes.txt", b"hello", "no model; expected a directory"),
        ("empty", b"", "no model; expected a directory"),
        ("plan.json", b'{"version": 1}', "no inventory"),
        ("cut.json", b'{"tensors": ', "cut.json:1:13: not JSON"),
        ("x.index.json", b"{}", "no index"),
        ("binary", bytes(range(256)), "no model"),
    ],
)
def test_a_file_that_is_no_model_is_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError) as refused:
        open_source(tmp_path / name)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("s3://bucket/model", "no source of this kind"),
        ("a\0b", "null character"),
        ("x" * 5000, r"xx\.\.\.: cannot be read: File name too long"),
        ("~no-such-user-here/model", "no such"),
        (3, "found int; expected a directory"),
        ("", "no such file or directory"),
    ],
)
def test_what_is_no_source_is_refused(source: object, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        open_source(source)


def test_an_index_is_known_by_its_content_too(tmp_path: Path) -> None:
    index = write_index(tmp_path, {"a.weight": "model.safetensors"})
    index.rename(tmp_path / "names.json")
    assert open_source(str(tmp_path / "names.json")).sets[0].template == "a"


def test_the_same_model_is_read_from_every_source(tmp_path: Path) -> None:
    tensors: dict[str, Any] = {
        "model.layers.0.mlp.up_proj.weight": ("F8_E4M3", [8, 4]),
        "model.layers.0.mlp.up_proj.weight_scale": ("F32", [8, 1]),
        "model.norm.weight": ("BF16", [4]),
    }
    directory = write_model(tmp_path, tensors, {})
    listed = [(name, shape, dtype) for name, (dtype, shape) in tensors.items()]
    sets = open_source(directory).sets
    assert sets == open_source(directory / "model.safetensors").sets
    assert sets == open_source(iter(listed)).sets
    write_index(tmp_path, dict.fromkeys(tensors, "model.safetensors"))
    assert sets == open_source(directory).sets


def test_a_list_takes_the_spellings_of_pytorch() -> None:
    class Size(tuple[int, ...]):
        """As `torch.Size` is one."""

        __slots__ = ()

    model = from_tensors(
        [("a.weight", Size((8, 4)), "torch.bfloat16"), ("a.bias", [8], "float32"), ("b.weight", None, None)],
        name="tiny",
        config={"model_type": "llama"},
        naming="module",
    )
    assert model.sets == (
        ("a", ((),), (("bias", "F32", (8,)), ("weight", "BF16", (8, 4)))),
        ("b", ((),), (("weight", None, None),)),
    )
    assert (model.name, model.naming, model.config) == ("tiny", "module", {"model_type": "llama"})


def test_a_packed_fp4_tensor_counts_elements() -> None:
    (stored,) = from_tensors([("a.weight", (8, 4), "torch.float4_e2m1fn_x2"), ("a.weight_scale", (8,), "F32")]).sets
    assert stored.tensors[0] == ("weight", "F4", (8, 8))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (["a.weight"], "found 'a.weight'; expected \\(name, shape, dtype\\)"),
        ([("a.weight", (2,))], "expected \\(name, shape, dtype\\)"),
        ([3], "found 3; expected \\(name, shape, dtype\\)"),
        ([(3, (2,), "F32")], "a tensor's name is 3; expected a string"),
        ([("a", (2.0,), "F32")], "shape is \\(2.0,\\); expected integers"),
        ([("a", 2, "F32")], "shape is 2; expected integers"),
        ([("a", (-1,), "F32")], "none of its sizes may be negative"),
        ([("a", (1,), "bf16x")], "safetensors has no dtype 'bf16x'"),
        ([("a", (1,), "bfloat_16")], "did you mean 'bfloat16'"),
        ([("a", (1,), "F32"), ("a", (1,), "F32")], "the tensor 'a' stands twice"),
    ],
)
def test_a_malformed_list_is_refused(entries: Any, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        from_tensors(entries)


def test_totals_are_those_of_the_checkpoint() -> None:
    from policyquant.inventory.dtypes import stored_bytes

    model = open_source(MODELS / "DeepSeek-V3.json.gz")
    total = sum(
        len(stored.indices) * (stored_bytes(tensor.dtype, tensor.shape) or 0)
        for stored in model.sets
        for tensor in stored.tensors
    )
    assert total == 688_574_839_360


@pytest.mark.parametrize("name", ["a..weight", "a.", "..", "a.b..c"])
def test_an_empty_part_of_a_name_is_kept(name: str) -> None:
    (stored,) = from_tensors([(name, (1,), "F32")]).sets
    assert f"{stored.template}.{stored.tensors[0].suffix}" == name


def test_names_that_fold_to_one_are_refused() -> None:
    with pytest.raises(SourceError, match=r"'x' and '\.x' are one layer's"):
        from_tensors([("x", (1,), "F32"), (".x", (1,), "F32")])
