"""A checkpoint or a state dict → its tensors by name, none of them read yet.

The tensors of files are exactly those that an inventory of the same files lists, taken from the same shards.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, cast

import torch

from policyquant.checkpoint.file_tensor import TORCH_DTYPES, FileTensor, OpenFile, UnreadableTensor
from policyquant.checkpoint.tensors import LazyTensor, MemoryTensor
from policyquant.collector import collector_paused
from policyquant.errors import SourceError
from policyquant.inventory.checkpoint_files import PICKLES, Selection, select_tensors
from policyquant.inventory.echo import path_shown, quoted, value_shown
from policyquant.inventory.files import LocalFiles
from policyquant.inventory.json_file import open_regular
from policyquant.inventory.safetensors import Header, header_of
from policyquant.inventory.sources import HUB, local_path

_TAKEN: Final = (
    "a directory with safetensors, a .safetensors file, the .index.json beside its shards, or a mapping of names to"
    " tensors"
)


class Tensors(Mapping[str, LazyTensor]):
    """Tensor name → tensor, not read yet. Its files stay open as long as it or one of its tensors lives."""

    def __init__(
        self, names: Collection[str], tensor_of: Callable[[str], LazyTensor], files: Sequence[OpenFile] = ()
    ) -> None:
        """
        Args:
            names: Of all tensors, in order; finding one is quick.
            tensor_of: Gives the tensor of each of them.
            files: Where they lie.
        """
        self._names = names
        self._tensor_of = tensor_of
        self._files = files

    def __getitem__(self, name: str) -> LazyTensor:
        if name not in self._names:
            raise KeyError(name)
        return self._tensor_of(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def release(self) -> None:
        """Give back the memory of what was read of files. What was read stays valid, and is read again if touched."""
        for file in self._files:
            file.release()


def open_tensors(source: str | os.PathLike[str] | Mapping[str, torch.Tensor]) -> Tensors:
    """The tensors that a source has. Only headers are read; nothing is run.

    Args:
        source: Path of a directory with an index and its shards, with numbered shards, or with one file of weights; of
            one `.safetensors` file; or of an index, whose shards lie beside it. Or a state dict.

    Raises:
        SourceError: there is no such source, it is damaged or incomplete, or its values are not tensors.
    """
    if isinstance(source, Mapping):
        return _from_memory(source)
    try:
        path = os.fsdecode(source)
    except TypeError:
        hint = "; give its state_dict()" if hasattr(source, "state_dict") else ""
        raise SourceError(f"found {type(source).__name__}; expected {_TAKEN}{hint}") from None
    with collector_paused():
        return _from_path(path)


def _from_memory(source: Mapping[str, torch.Tensor]) -> Tensors:
    tensors = dict(source)
    for name, tensor in cast("dict[object, object]", tensors).items():
        if not isinstance(name, str):
            raise SourceError(f"a state dict with the key {value_shown(name)}; expected names of tensors")
        if not isinstance(tensor, torch.Tensor):
            raise SourceError(f"{quoted(name)} is {type(tensor).__name__}; expected a torch.Tensor")
        if tensor.is_meta:
            raise SourceError(f"{quoted(name)} is on the meta device, where tensors have no values")
        if tensor.layout != torch.strided:
            layout = str(tensor.layout).removeprefix("torch.")
            raise SourceError(f"{quoted(name)} has layout {layout}; expected a dense tensor, as its to_dense() is")
    return Tensors(tensors, lambda name: MemoryTensor(name, tensors[name]))


def _from_path(path: str) -> Tensors:
    if path.startswith(HUB):
        repository, _, revision = path.removeprefix(HUB).partition("@")
        command = f"hf download {repository}" + (f" --revision {revision}" if revision else "")
        raise SourceError(
            f"{path_shown(path)}: weights are read from files on disk only; download it with"
            f" `{path_shown(command)}` and give the directory that this prints"
        )
    path, status = local_path(path, _TAKEN)
    if stat.S_ISDIR(status.st_mode):
        files = _HeldFiles(path)
        return _of_files(files, select_tensors(files))
    label = path_shown(path)
    name = Path(path).name
    files = _HeldFiles(Path(path).parent)
    if name.endswith(".safetensors"):
        return _of_files(files, _one_file(files, name, label))
    if name.endswith(".json"):
        return _of_files(files, select_tensors(files, name))
    if name.endswith(PICKLES):
        raise SourceError(f"{label}: may be a Python pickle, which is never opened; convert it to safetensors")
    raise SourceError(f"{label}: not a file of tensors that is read; expected {_TAKEN}")


class _HeldFiles(LocalFiles):
    """A directory whose files stay open after their headers were read: what they are read for later is then the very
    file that the header describes."""

    def __init__(self, directory: str | Path) -> None:
        super().__init__(directory)
        self.held: dict[str, OpenFile] = {}

    def _header(self, file: str) -> Header | None:
        if not self._has(file):
            return None
        label = self.label(file)
        with open_regular(self._path(file), label) as descriptor:
            # Before the header is read, so that a file that is written to meanwhile counts as changed.
            self.held[file] = OpenFile(descriptor, label)
            return header_of(descriptor, label)


def _one_file(files: _HeldFiles, name: str, label: str) -> Selection:
    header = files.headers([name])[name]
    if header is None:
        raise SourceError(f"{label}: no such file")
    return Selection(header.tensors, [], {name: header}, {})


def _of_files(files: _HeldFiles, selection: Selection) -> Tensors:
    tensors = {tensor[0]: tensor for tensor in selection.tensors}

    def tensor_of(name: str) -> LazyTensor:
        # Of a file, dtype and shape are always known.
        _, dtype, shape = cast("tuple[str, str, tuple[int, ...]]", tensors[name])
        holder = selection.holder(name)
        torch_dtype = TORCH_DTYPES.get(dtype)
        if torch_dtype is None:
            return UnreadableTensor(name, shape, dtype, files.label(holder))
        header = selection.headers[holder]
        start = header.data_start + header.offsets[name][0]
        return FileTensor(name, shape, torch_dtype, files.held[holder], start)

    return Tensors(tensors, tensor_of, list(files.held.values()))
