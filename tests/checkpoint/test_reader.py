"""Opening checkpoints and state dicts, and reading tensors, rows and experts of them."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from policyquant.checkpoint.file_tensor import TORCH_DTYPES, UnreadableTensor
from policyquant.checkpoint.reader import open_tensors
from policyquant.checkpoint.tensors import LazyTensor, MemoryTensor
from policyquant.errors import SourceError
from policyquant.inventory.sources import open_source
from tests.inventory.files_on_disk import CHECKPOINTS, header_of, refusal, safetensors_bytes, write_index
from tests.inventory.test_checkpoint_files import EXPECTED, REFUSED, tensor_names

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
MAPS = Path("/proc/self/maps")
needs_proc = pytest.mark.skipif(not MAPS.exists(), reason="asks Linux what is mapped")


def values(*shape: int, start: int = 0) -> torch.Tensor:
    count = 1
    for size in shape:
        count *= size
    return torch.arange(start, start + count, dtype=torch.float32).reshape(shape)


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Equal to the bit, in shape and in dtype."""
    return found.dtype == expected.dtype and found.shape == expected.shape and stored(found) == stored(expected)


def stored(tensor: torch.Tensor) -> bytes:
    """A tensor's bytes, row-major."""
    return bytes(tensor.flatten().clone(memory_format=torch.contiguous_format).view(torch.uint8).tolist())


def laid_out(path: Path, tensors: dict[str, tuple[str, list[int], bytes]], padding: int = 0) -> Path:
    """A file written by hand: its header is `padding` blanks longer, so its tensors lie at any offset."""
    header = header_of({name: (dtype, shape) for name, (dtype, shape, _) in tensors.items()})
    text = json.dumps(header).encode() + b" " * padding
    data = b"".join(data for _, _, data in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


# Which tensors, and from which file


def test_a_file_is_a_mapping_of_names_to_tensors_that_are_not_read(tmp_path: Path) -> None:
    save_file({"a": values(2, 3), "b": values(4)}, tmp_path / "x.safetensors")
    tensors = open_tensors(tmp_path / "x.safetensors")
    assert sorted(tensors) == ["a", "b"]
    assert len(tensors) == 2
    assert "a" in tensors
    assert "c" not in tensors
    assert tensors.get("c") is None
    tensor = tensors["a"]
    assert (tensor.name, tensor.shape, tensor.dtype) == ("a", (2, 3), torch.float32)
    assert tensor.place == f"'a' in {tmp_path / 'x.safetensors'}"
    assert same(tensor.read(), values(2, 3))


def test_a_name_that_is_not_there_is_a_key_error(tmp_path: Path) -> None:
    save_file({"a": values(2)}, tmp_path / "x.safetensors")
    with pytest.raises(KeyError, match="b"):
        open_tensors(tmp_path / "x.safetensors")["b"]


@pytest.mark.parametrize("numbered_backwards", [False, True])
def test_each_tensor_of_an_index_comes_from_its_shard(tmp_path: Path, numbered_backwards: bool) -> None:
    shards = [TWO, ONE] if numbered_backwards else [ONE, TWO]
    save_file({"z": values(2), "a": values(3, start=10)}, tmp_path / shards[0])
    save_file({"m": values(4, start=20)}, tmp_path / shards[1])
    index = write_index(tmp_path, {"m": shards[1], "z": shards[0], "a": shards[0]})
    for source in (tmp_path, index, str(tmp_path)):
        tensors = open_tensors(source)
        assert list(tensors) == ["m", "z", "a"]
        assert same(tensors["m"].read(), values(4, start=20))
        assert same(tensors["z"].read(), values(2))
        assert same(tensors["a"].read(), values(3, start=10))


def test_a_tensor_astray_comes_from_the_shard_that_holds_it(tmp_path: Path) -> None:
    save_file({"a": values(2), "b": values(2, start=5)}, tmp_path / ONE)
    save_file({"c": values(2, start=9)}, tmp_path / TWO)
    write_index(tmp_path, {"a": ONE, "b": TWO, "c": TWO, "gone": ONE})
    tensors = open_tensors(tmp_path)
    assert set(tensors) == {"a", "b", "c"}
    assert same(tensors["b"].read(), values(2, start=5))
    assert tensors["b"].file.endswith(ONE)


def test_of_duplicates_the_indexed_one_is_read_and_what_is_not_indexed_is_left_out(tmp_path: Path) -> None:
    save_file({"a": values(2), "b": values(3), "stale": values(1)}, tmp_path / ONE)
    save_file({"a": values(2, start=7)}, tmp_path / TWO)
    write_index(tmp_path, {"a": TWO, "b": ONE})
    tensors = open_tensors(tmp_path)
    assert list(tensors) == ["a", "b"]
    assert same(tensors["a"].read(), values(2, start=7))


def test_without_an_index_the_first_of_the_numbered_shards_wins(tmp_path: Path) -> None:
    save_file({"a": values(2)}, tmp_path / ONE)
    save_file({"a": values(2, start=7), "b": values(3)}, tmp_path / TWO)
    tensors = open_tensors(tmp_path)
    assert same(tensors["a"].read(), values(2))
    assert same(tensors["b"].read(), values(3))


def test_an_index_that_is_named_decides_among_several(tmp_path: Path) -> None:
    for letter in "ab":
        save_file({letter: values(2)}, tmp_path / f"{letter}.safetensors")
        index = {"weight_map": {letter: f"{letter}.safetensors"}}
        (tmp_path / f"{letter}.safetensors.index.json").write_text(json.dumps(index))
    assert "several indices" in refusal(lambda: open_tensors(tmp_path))
    assert list(open_tensors(tmp_path / "b.safetensors.index.json")) == ["b"]


@pytest.mark.parametrize("name", EXPECTED)
def test_the_tensors_are_those_that_the_inventory_lists(name: str) -> None:
    tensors = open_tensors(CHECKPOINTS / name)
    assert set(tensors) == tensor_names(open_source(CHECKPOINTS / name))
    for tensor in tensors.values():
        assert tuple(tensor.read().shape) == tensor.shape


@pytest.mark.parametrize("name", REFUSED)
def test_a_checkpoint_that_the_inventory_refuses_is_refused_likewise(name: str) -> None:
    assert REFUSED[name] in refusal(lambda: open_tensors(CHECKPOINTS / name))


# Values


@pytest.mark.parametrize("padding", range(9))
@pytest.mark.parametrize("dtype", TORCH_DTYPES)
def test_every_dtype_is_read_at_any_offset(tmp_path: Path, dtype: str, padding: int) -> None:
    torch_dtype = TORCH_DTYPES[dtype]
    if dtype == "BOOL":
        expected = torch.tensor([[True, False, True], [False, False, True]])
    else:
        expected = torch.arange(1, 6 * torch_dtype.itemsize + 1, dtype=torch.uint8).view(torch_dtype).reshape(2, 3)
    data = stored(expected)
    path = laid_out(tmp_path / "x.safetensors", {"odd": ("U8", [1], b"\7"), "x": (dtype, [2, 3], data)}, padding)
    tensor = open_tensors(path)["x"]
    assert tensor.dtype == torch_dtype
    assert same(tensor.read(), expected)
    assert same(tensor.rows(1, 2).read(), expected[1:2])
    assert same(tensor.expert(1).read(), expected[1])
    assert tensor.read().data_ptr() % torch_dtype.itemsize == 0


@pytest.mark.parametrize("padding", [0, 1, 2, 3])
def test_a_large_tensor_is_read_at_any_offset(tmp_path: Path, padding: int) -> None:
    expected = values(300, 1000)
    data = stored(expected)
    path = laid_out(tmp_path / "x.safetensors", {"odd": ("U8", [1], b"\7"), "x": ("F32", [300, 1000], data)}, padding)
    tensor = open_tensors(path)["x"]
    assert same(tensor.read(), expected)
    assert same(tensor.rows(100, 250).read(), expected[100:250])
    assert tensor.read().data_ptr() % 4 == 0


def test_a_byte_that_is_no_bool_counts_as_true(tmp_path: Path) -> None:
    path = laid_out(tmp_path / "x.safetensors", {"x": ("BOOL", [3], b"\0\1\xff")})
    assert open_tensors(path)["x"].read().view(torch.uint8).tolist() == [0, 1, 1]


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4), (2, 0, 5)])
def test_tensors_without_elements_have_their_shape(tmp_path: Path, shape: tuple[int, ...]) -> None:
    save_file({"x": torch.empty(shape, dtype=torch.bfloat16), "y": values(2)}, tmp_path / "x.safetensors")
    tensor = open_tensors(tmp_path / "x.safetensors")["x"]
    assert same(tensor.read(), torch.empty(shape, dtype=torch.bfloat16))
    assert tensor.rows(0, 1).read().shape == torch.empty(shape)[0:1].shape


def test_a_file_of_nothing_but_an_empty_tensor_is_read(tmp_path: Path) -> None:
    save_file({"x": torch.empty(0)}, tmp_path / "x.safetensors")
    assert open_tensors(tmp_path / "x.safetensors")["x"].read().shape == (0,)


def test_a_scalar_is_read_as_one(tmp_path: Path) -> None:
    save_file({"x": torch.tensor(2.5)}, tmp_path / "x.safetensors")
    tensor = open_tensors(tmp_path / "x.safetensors")["x"]
    assert same(tensor.read(), torch.tensor(2.5))
    wrongs: list[Callable[[], object]] = [lambda: tensor.rows(0, 1), lambda: tensor.expert(0), tensor.transposed]
    for wrong in wrongs:
        with pytest.raises(IndexError, match="'x' in "):
            wrong()


@given(st.data())
def test_parts_in_any_order_are_those_of_the_tensor(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    expected = values(*data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    directory = tmp_path_factory.mktemp("parts")
    save_file({"x": expected}, directory / "x.safetensors")
    tensor: LazyTensor = open_tensors(directory / "x.safetensors")["x"]
    for _ in range(data.draw(st.integers(1, 5))):
        steps = ["rows", "expert"] * (tensor.shape[:1] not in ((), (0,))) + ["transposed"] * (len(tensor.shape) > 1)
        step = data.draw(st.sampled_from(steps or ["none"]))
        if step == "rows":
            start = data.draw(st.integers(0, tensor.shape[0]))
            stop = data.draw(st.integers(start, tensor.shape[0]))
            tensor, expected = tensor.rows(start, stop), expected[start:stop]
        elif step == "expert":
            index = data.draw(st.integers(0, tensor.shape[0] - 1))
            tensor, expected = tensor.expert(index), expected[index]
        elif step == "transposed":
            tensor, expected = tensor.transposed(), expected.transpose(-2, -1)
        assert tensor.shape == tuple(expected.shape)
    assert same(tensor.read(), expected)


@pytest.mark.parametrize("index", [2, -3])
@pytest.mark.parametrize("transposed", [False, True])
def test_an_expert_that_is_not_there_is_named(tmp_path: Path, index: int, transposed: bool) -> None:
    save_file({"x": values(2, 2, 3)}, tmp_path / "x.safetensors")
    tensor = open_tensors(tmp_path / "x.safetensors")["x"]
    tensor = tensor.transposed() if transposed else tensor
    with pytest.raises(IndexError, match=rf"'x' in .* has no entry {index}"):
        tensor.expert(index)


@pytest.mark.parametrize("dtype", ["F4", "F6_E2M3", "F6_E3M2"])
def test_a_dtype_that_pytorch_lacks_is_refused_when_it_is_read(tmp_path: Path, dtype: str) -> None:
    (tmp_path / "x.safetensors").write_bytes(safetensors_bytes(header_of({"x": (dtype, [2, 4]), "y": ("U8", [3])})))
    tensors = open_tensors(tmp_path / "x.safetensors")
    tensor = tensors["x"]
    assert isinstance(tensor, UnreadableTensor)
    assert (tensor.shape, tensor.dtype, tensor.stored_dtype) == ((2, 4), torch.uint8, dtype)
    for part in (tensor, tensor.rows(0, 1), tensor.expert(1), tensor.transposed()):
        message = refusal(part.read)
        assert f"'x' in {tmp_path / 'x.safetensors'} is stored as {dtype}" in message
    assert tensors["y"].read().tolist() == [0, 0, 0]


# Memory


def mapped_bytes(path: Path) -> int:
    """Bytes of address space in which a file is mapped."""
    total = 0
    for line in MAPS.read_text().splitlines():
        if line.endswith(str(path)):
            first, last = line.split()[0].split("-")
            total += int(last, 16) - int(first, 16)
    return total


def resident_file_bytes() -> int:
    """RssFile of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssFile:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssFile in /proc/self/status")


def large_file(path: Path, shape: list[int]) -> Path:
    """A file of one uint8 tensor of zeros, which takes no room on most disks."""
    text = json.dumps(header_of({"x": ("U8", shape)})).encode()
    size = 1
    for each in shape:
        size *= each
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + size)
    return path


@needs_proc
def test_rows_and_experts_map_only_their_bytes(tmp_path: Path) -> None:
    path = large_file(tmp_path / "x.safetensors", [300, 1000, 1000])
    tensor = open_tensors(path)["x"]
    assert mapped_bytes(path) == 0
    some = tensor.rows(100, 102).read()
    assert 2_000_000 <= mapped_bytes(path) <= 2_000_000 + 2 * 65536
    one = tensor.expert(299).transposed().rows(0, 10).read()
    assert 3_000_000 <= mapped_bytes(path) <= 3_000_000 + 4 * 65536
    assert some.shape == (2, 1000, 1000)
    assert one.shape == (10, 1000)
    del some, one
    gc.collect()
    assert mapped_bytes(path) == 0


@needs_proc
def test_release_gives_the_memory_of_what_was_read_back(tmp_path: Path) -> None:
    tensors = open_tensors(large_file(tmp_path / "x.safetensors", [300_000_000]))
    before = resident_file_bytes()
    read = tensors["x"].read()
    assert int(read[::512].sum()) == 0
    assert resident_file_bytes() - before > 200_000_000
    tensors.release()
    assert resident_file_bytes() - before < 20_000_000
    assert int(read[-1]) == 0, "what was read before is still valid"


@needs_proc
def test_more_tensors_than_the_system_opens_files_are_read(tmp_path: Path) -> None:
    """As of one layer with 512 experts of three parts each; before Python 3.13, each mapping takes a descriptor."""
    resource = pytest.importorskip("resource")
    tensor = open_tensors(large_file(tmp_path / "x.safetensors", [200, 65536]))["x"]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, hard))  # noqa: PTH208
    try:
        read = [tensor.expert(index).read() for index in range(200)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert all(int(each.sum()) == 0 for each in read)


def test_files_are_closed_with_the_last_tensor(tmp_path: Path) -> None:
    descriptors = Path("/proc/self/fd")
    if not descriptors.exists():
        pytest.skip("asks Linux what is open")
    path = tmp_path / "x.safetensors"
    save_file({"x": values(2)}, path)

    def count() -> int:
        gc.collect()
        return sum(str(entry.resolve()) == str(path) for entry in descriptors.iterdir())

    tensors = open_tensors(path)
    tensor = tensors["x"]
    assert count() == 1
    del tensors
    assert count() == 1
    assert tensor.read().tolist() == [0, 1]
    del tensor
    assert count() == 0


# Files that change


@pytest.mark.parametrize("size", [4, 200_000])
def test_a_file_that_was_cut_after_opening_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"x": values(size)}, path)
    tensor = open_tensors(path)["x"]
    length = path.stat().st_size
    os.truncate(path, length - 1)
    assert f"{path}: has {length - 1:,} bytes, and had {length:,} when it was opened" in refusal(tensor.read)
    assert refusal(tensor.rows(0, 1).read)


def test_a_file_that_was_written_to_after_opening_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"x": values(4)}, path)
    tensor = open_tensors(path)["x"]
    changed = path.read_bytes()[:-1] + b"\1"
    path.write_bytes(changed)
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1_000_000))  # Clocks of file systems can be coarse.
    assert f"{path}: was written to after it was opened" in refusal(tensor.read)


def test_of_a_file_whose_name_was_given_to_another_the_opened_one_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"x": values(4)}, path)
    tensors = open_tensors(path)
    save_file({"x": values(4, start=9)}, tmp_path / "new.safetensors")
    os.replace(tmp_path / "new.safetensors", path)  # noqa: PTH105
    assert same(tensors["x"].read(), values(4))
    path.unlink()
    assert same(tensors["x"].read(), values(4))


# In memory


def test_a_state_dict_is_a_source() -> None:
    layer = torch.nn.Linear(3, 2)
    tensors = open_tensors(layer.state_dict())
    assert list(tensors) == ["weight", "bias"]
    assert isinstance(tensors["weight"], MemoryTensor)
    assert same(tensors["weight"].rows(1, 2).read(), layer.weight.detach()[1:2])
    assert tensors["weight"].file == ""
    tensors.release()
    assert same(tensors["bias"].read(), layer.bias.detach())


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"a": 3}, "'a' is int; expected a torch.Tensor"),
        ({3: torch.ones(1)}, "the key 3"),
        ({"a": torch.ones(1, device="meta")}, "'a' is on the meta device"),
        (torch.nn.Linear(1, 1), "found Linear; expected .*give its state_dict"),
        (7, "found int; expected a directory"),
    ],
)
def test_what_holds_no_tensors_is_refused(source: object, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        open_tensors(source)  # type: ignore[arg-type]


# What is no source


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("hf://org/name", "download it with `hf download org/name` and give the directory"),
        ("hf://org/name@v1", "hf download org/name --revision v1`"),
        ("https://example.org/x.safetensors", "no source of this kind; expected a directory with safetensors"),
    ],
)
def test_what_lies_elsewhere_is_refused_with_what_to_do(source: str, message: str) -> None:
    assert message in refusal(lambda: open_tensors(source))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("model.bin", b"PK\3\4", "never opened; convert it to safetensors"),
        ("model.gguf", b"GGUF", "not a file of tensors that is read; expected a directory with safetensors"),
        ("config.json", b'{"model_type": "llama"}', "no index"),
        ("x.safetensors", b"PK\3\4" + bytes(9), "never opened. Convert it to safetensors"),
        ("x.safetensors", b"", "empty; expected a safetensors file"),
    ],
)
def test_other_files_are_refused_with_what_to_do(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert message in refusal(lambda: open_tensors(tmp_path / name))


def test_a_directory_of_pickles_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK\3\4")
    assert "convert them to safetensors" in refusal(lambda: open_tensors(tmp_path))


def test_a_missing_source_is_told_with_the_nearest_name(tmp_path: Path) -> None:
    save_file({"x": values(1)}, tmp_path / "model.safetensors")
    message = refusal(lambda: open_tensors(tmp_path / "modell.safetensors"))
    assert "no such file or directory; did you mean" in message
