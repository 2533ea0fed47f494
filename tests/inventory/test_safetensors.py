"""The safetensors reader: what is a file of that format, and what is not."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyquant.errors import SourceError
from policyquant.inventory.dtypes import DTYPE_BITS
from policyquant.inventory.safetensors import MOST_HEADER_BYTES, parse_header, read_header
from tests.inventory.files_on_disk import CHECKPOINTS, header_of, refusal, safetensors_bytes

SOUND = {
    "bool_i8_i64_f64_c64": {
        "a": ("BOOL", (2,)),
        "b": ("I8", (2,)),
        "p": ("I8", (4,)),
        "i": ("I64", (1,)),
        "f": ("F64", (1,)),
        "c": ("C64", (1,)),
    },
    "f4_packed": {"x.weight": ("F4", (2, 8))},
    "f8_e8m0_scale": {"x.weight_scale": ("F8_E8M0", (4,))},
    "fp8_nan_codes": {"m.weight": ("F8_E4M3", (2, 4)), "m.weight_scale_inv": ("F32", (1, 1))},
    "fp8_without_scale": {"model.layers.0.mlp.up_proj.weight": ("F8_E4M3", (2, 4))},
    "metadata_only": {},
    "ok": {"a.weight": ("F32", (2, 2))},
    "path_like_name": {"../../etc/x": ("F32", (1,)), "": ("F32", (1,))},
    "scalar_0dim": {"x.input_scale": ("F32", ())},
    "u16_u32_u64": {"a": ("U16", (2,)), "b": ("U32", (1,)), "c": ("U64", (1,))},
    "unicode_name": {"modèle.poids": ("F32", (1,))},
    "zero_size": {"x.weight": ("BF16", (0, 16))},
}
DAMAGED = {
    "duplicate_json_key": "the key 'a' stands twice",
    "empty_file": "empty; expected a safetensors file",
    "header_len_huge": "1,152,921,504,606,846,976 bytes; the format allows 100,000,000",
    "header_longer_than_file": "says that its header has 5,000 bytes, but only 88 follow",
    "hole_between": "bytes 16 to 20 belong to no tensor",
    "lfs_pointer": "a Git LFS pointer, not the weights themselves; run `git lfs pull`",
    "metadata_non_string": "__metadata__ has 1 for 'n'; expected a string",
    "negative_dim": "tensor 'a': shape is [-1]",
    "not_json": "not JSON: expecting value, found the end of the file",
    "overlapping_offsets": "'a.weight' and 'b.weight' overlap in bytes 8 to 16",
    "shape_offset_mismatch": "F32 [2, 3] takes 24 bytes, but its data_offsets span 16",
    "trailing_bytes": "4 bytes after the last tensor belong to none",
    "truncated_data": "truncated: its tensors take 16 bytes, 10 are there; an incomplete download?",
    "unknown_dtype": "tensor 'x.weight': unknown dtype 'F3'; did you mean 'F32'?",
    "zip_pickle_renamed": "a zip archive, as torch.save writes (pickle); it is never opened",
}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_file_gives_its_tensors(name: str) -> None:
    header = read_header(str(CHECKPOINTS / f"{name}.safetensors"))
    assert {tensor: (dtype, shape) for tensor, dtype, shape in header.tensors} == SOUND[name]


@pytest.mark.parametrize(("name", "message"), DAMAGED.items())
def test_a_damaged_file_is_refused_with_the_reason(name: str, message: str) -> None:
    path = str(CHECKPOINTS / f"{name}.safetensors")
    with pytest.raises(SourceError) as refused:
        read_header(path)
    assert message in str(refused.value)
    assert str(refused.value).startswith(path)


def test_every_file_of_the_collection_has_an_expectation() -> None:
    assert {path.stem for path in CHECKPOINTS.glob("*.safetensors")} == SOUND.keys() | DAMAGED.keys()


def entry(dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"a": 5}, "tensor 'a' is 5; expected an object with dtype, shape and data_offsets"),
        ({"a": {"dtype": "F32"}}, "tensor 'a' has no shape, data_offsets"),
        ({"a": entry(shape=2)}, "shape is 2; expected a list"),
        ({"a": entry(offsets=[0])}, "expected a name, a list of integers and two integers"),
        ({"a": entry(offsets={"0": 0})}, "data_offsets is {'0': 0}; expected a list"),
        ({"a": entry(dtype=["F32"])}, "dtype ['F32']"),
        ({"a": entry(dtype={})}, "dtype {}"),
        ({"a": entry(shape=[[2]])}, "shape [[2]]"),
        ({"a": entry(shape=[2.0])}, "shape is [2.0]"),
        ({"a": entry(shape=[True, 2])}, "shape is [True, 2]"),
        ({"b": entry(shape=[1, 2]), "a": entry(shape=[True, 2], offsets=[8, 16])}, "shape is [True, 2]"),
        ({"a": entry(offsets=[8, 0])}, "data_offsets are [8, 0]"),
        ({"a": entry(offsets=[-8, 0])}, "data_offsets are [-8, 0]"),
        ({"a": entry(offsets=[False, 8])}, "data_offsets are [False, 8]"),
        ({"a": entry(dtype="F4", shape=[3], offsets=[0, 2])}, "F4 [3] has 12 bits, which fill no whole bytes"),
        ({"a": entry(dtype="F6_E2M3", shape=[2], offsets=[0, 2])}, "F6_E2M3 [2] has 12 bits"),
        ({"a": entry(shape=[1 << 40, 1 << 40])}, "larger than any file"),
        ({"a": entry(shape=[1] * 100)}, "has more than 64 dimensions"),
        ({"__metadata__": ["pt"]}, "__metadata__ is ['pt']"),
        (b'{"a": [', "not JSON"),
        (b' {"a": 1}', "does not begin with {"),
        (b"[1]", "does not begin with {"),
        (b'{"\xff": 1}', ":1:3: not UTF-8"),
        (b'{"\\ud800": 1}', "half of a surrogate pair"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "(header)"),
    ],
)
def test_a_malformed_header_is_refused(tmp_path: Path, header: object, message: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors_bytes(header, 8))
    with pytest.raises(SourceError) as refused:
        read_header(str(path))
    assert message in str(refused.value)


@pytest.mark.parametrize("dtype", DTYPE_BITS)
def test_every_dtype_of_the_format_is_known(tmp_path: Path, dtype: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors_bytes(header_of({"a.weight": (dtype, [8, 4])})))
    assert read_header(str(path)).tensors == (("a.weight", dtype, (8, 4)),)


def test_tensors_may_lie_in_another_order_than_they_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors_bytes({"b": entry(offsets=[8, 16]), "a": entry()}, 16))
    header = read_header(str(path))
    assert [name for name, *_ in header.tensors] == ["b", "a"]
    assert header.offsets == {"b": (8, 16), "a": (0, 8)}


def test_nothing_is_allocated_for_a_header_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(MOST_HEADER_BYTES.to_bytes(8, "little") + b"{}")
    tracemalloc.start()
    with pytest.raises(SourceError, match="only 2 follow"):
        read_header(str(path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000


def test_a_header_of_more_values_than_any_model_has_is_refused() -> None:
    header = b'{"a": [' + b"[]," * 4_000_001 + b"[]]}"
    with pytest.raises(SourceError, match="more than 4,000,000 values"):
        parse_header(header, len(header) + 8, "model.safetensors")


@pytest.mark.parametrize("kind", ["directory", "pipe", "missing", "dangling link"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "model.safetensors"
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "dangling link":
        path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(SourceError, match=r"not a regular file|no such file"):
        read_header(str(path))


@given(st.binary(max_size=200))
def test_no_bytes_give_anything_but_a_header_or_an_explained_refusal(data: bytes) -> None:
    header = b"{" + data
    message = refusal(lambda: parse_header(header, len(header) + 8, "model.safetensors"))
    assert not message or message.startswith("model.safetensors")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 1 << 70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.fixed_dictionaries(
            {},
            optional={
                "dtype": st.sampled_from([*DTYPE_BITS]) | json_values,
                "shape": st.lists(st.integers(0, 4), max_size=3) | json_values,
                "data_offsets": st.lists(st.integers(0, 64), min_size=2, max_size=2) | json_values,
            },
        )
        | json_values,
        max_size=3,
    )
)
def test_no_json_gives_anything_but_a_header_or_an_explained_refusal(header: dict[str, object]) -> None:
    data = safetensors_bytes(header, 0)
    message = refusal(lambda: parse_header(data[8:], len(data), "model.safetensors"))
    assert not message or message.startswith("model.safetensors")


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(lambda name: name != "__metadata__")


@given(st.dictionaries(names, st.tuples(st.sampled_from([*DTYPE_BITS]), st.lists(st.integers(0, 3), max_size=3))))
def test_what_is_written_is_read(tensors: dict[str, tuple[str, list[int]]]) -> None:
    """Shapes get a last dimension of 8, so that sub-byte types fill whole bytes."""
    written = {name: (dtype, [*shape, 8]) for name, (dtype, shape) in tensors.items()}
    data = safetensors_bytes(header_of(written))
    start = 8 + int.from_bytes(data[:8], "little")
    header = parse_header(data[8:start], len(data), "model.safetensors")
    assert {name: (dtype, list(shape)) for name, dtype, shape in header.tensors if shape is not None} == written
