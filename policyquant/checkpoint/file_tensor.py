"""Tensors of safetensors files that are open: each read maps the bytes that it is about, and no more.

A mapping is private to its read and goes with the tensor that was read. Large tensors are not copied unless their bytes
do not lie as the dtype needs them.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
import weakref
from math import prod
from typing import Final

import torch

from policyquant.checkpoint.derived_tensor import DerivableTensor
from policyquant.errors import SourceError
from policyquant.inventory.json_file import unreadable

TORCH_DTYPES: Final[dict[str, torch.dtype]] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "C64": torch.complex64,
    "F64": torch.float64,
    "I64": torch.int64,
    "U64": torch.uint64,
}
"""dtype as safetensors spells it → PyTorch's. Those that are missing here are smaller than a byte."""

_LEAST_MAPPED: Final = 1 << 16
"""Bytes; fewer are copied sooner than they are mapped, above all scales."""

_MOST_AT_ONCE: Final = 1 << 30
"""Bytes; Linux reads less than 2 GiB at a time."""

_CAN_COPY: Final = hasattr(os, "preadv")
"""Not on Windows, where mappings need no descriptors."""

_NO_MORE_MAPS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class OpenFile:
    """A file of tensors, held open, so that its name may come to mean another one meanwhile.

    It must not change where it lies: whoever wrote into it may have changed any tensor.
    """

    def __init__(self, descriptor: int, label: str) -> None:
        """
        Args:
            descriptor: Of the file. It is duplicated, so the caller closes its own.
            label: What to call the file in messages.
        """
        self.label = label
        self._descriptor = os.dup(descriptor)
        self._closing = weakref.finalize(self, os.close, self._descriptor)
        status = os.fstat(self._descriptor)
        self._size, self._changed = status.st_size, status.st_mtime_ns
        self._maps: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()

    def read(self, start: int, length: int) -> torch.Tensor:
        """`length` bytes (at least one) from `start`: uint8, [length]. Not to be written to.

        They are a view of the file. They are a copy if they are few, or if the system gives no more mappings: one layer
        may have more experts than a process may open files.

        Raises:
            SourceError: the file has changed since it was opened, or the system refuses to map it.
        """
        try:
            self._check_unchanged()
            if length < _LEAST_MAPPED and _CAN_COPY:
                return self._copied(start, length)
            skipped = start % mmap.ALLOCATIONGRANULARITY
            try:
                mapped = self._map(start - skipped, skipped + length)
            except OSError as error:
                if error.errno not in _NO_MORE_MAPS or not _CAN_COPY:
                    raise
                return self._copied(start, length)
        except OSError as error:
            raise unreadable(self.label, error) from None
        self._maps.add(mapped)
        return torch.frombuffer(mapped, dtype=torch.uint8, count=length, offset=skipped)

    def _check_unchanged(self) -> None:
        status = os.fstat(self._descriptor)
        advice = "; leave it alone until the model is loaded, and open it again"
        # Touching a mapped page beyond the end of a file kills the process.
        if status.st_size != self._size:
            raise SourceError(
                f"{self.label}: has {status.st_size:,} bytes, and had {self._size:,} when it was opened{advice}"
            )
        if status.st_mtime_ns != self._changed:
            raise SourceError(f"{self.label}: was written to after it was opened{advice}")

    def _map(self, start: int, length: int) -> mmap.mmap:
        # Of a private mapping that can be written to, PyTorch takes a view without a warning; nobody writes.
        if sys.version_info >= (3, 13):  # Before, each mapping duplicates the descriptor, of which there are few.
            return mmap.mmap(self._descriptor, length, access=mmap.ACCESS_COPY, offset=start, trackfd=False)
        return mmap.mmap(self._descriptor, length, access=mmap.ACCESS_COPY, offset=start)

    def _copied(self, start: int, length: int) -> torch.Tensor:
        data = bytearray(length)
        self._fill(memoryview(data), start)
        return torch.frombuffer(data, dtype=torch.uint8)

    def read_into(self, target: torch.Tensor, start: int) -> None:
        """Fill `target`, which is on the CPU, without gaps and not empty, with bytes from `start`.

        The system copies them, so other threads go on meanwhile, and each byte is touched once.

        Raises:
            SourceError: the file has changed since it was opened, or cannot be read.
        """
        memory = (ctypes.c_char * target.nbytes).from_address(target.data_ptr())
        try:
            self._check_unchanged()
            self._fill(memoryview(memory).cast("B"), start)
        except OSError as error:
            raise unreadable(self.label, error) from None

    def _fill(self, memory: memoryview, start: int) -> None:
        done = 0
        while done < len(memory):
            count = os.preadv(self._descriptor, [memory[done : done + _MOST_AT_ONCE]], start + done)
            if not count:
                raise SourceError(f"{self.label}: ends within a tensor")
            done += count

    def release(self) -> None:
        """Give back the memory of all views of the file. Those that somebody still has stay valid: their pages come
        again when they are touched."""
        if hasattr(mmap, "MADV_DONTNEED"):
            for mapped in list(self._maps):
                mapped.madvise(mmap.MADV_DONTNEED)


class FileTensor(DerivableTensor):
    """A tensor of an open file, or some of its rows, of which only the bytes are read."""

    def __init__(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, file: OpenFile, start: int) -> None:
        """
        Args:
            name: Its full name in the file.
            shape: Its sizes; row-major, without gaps.
            dtype: One of `TORCH_DTYPES`.
            file: Where it lies.
            start: Offset of its first byte in the file.
        """
        super().__init__(name, shape, dtype, file.label)
        self._open = file
        self._start = start

    def read(self) -> torch.Tensor:
        """The values, as stored: a view of the file, not to be written to, or a copy where the bytes do not lie at a
        multiple of the dtype's size.

        Raises:
            SourceError: the file has changed since it was opened, or cannot be mapped.
        """
        length = prod(self.shape) * self.dtype.itemsize
        if not length:
            return torch.empty(self.shape, dtype=self.dtype)
        data = self._open.read(self._start, length)
        if self.dtype == torch.bool:  # A byte that is neither 0 nor 1 is no bool that PyTorch can compute with.
            return (data != 0).reshape(self.shape)
        if data.data_ptr() % self.dtype.itemsize:
            data = data.clone()
        return data.view(self.dtype).reshape(self.shape)

    @property
    def copied_by_system(self) -> bool:
        """Not for bools, which are checked as they are read."""
        return _CAN_COPY and self.dtype != torch.bool

    def read_into(self, target: torch.Tensor) -> None:
        """Copy the values into `target`, of the same shape; straight from the file if it is a plain tensor on the CPU.

        Raises:
            SourceError: the file has changed since it was opened, or cannot be read.
        """
        as_stored = target.dtype == self.dtype and tuple(target.shape) == self.shape
        if not (self.copied_by_system and as_stored and target.device.type == "cpu" and target.is_contiguous()):
            super().read_into(target)
        elif target.numel():
            self._open.read_into(target, self._start)

    def rows(self, start: int, stop: int) -> FileTensor:
        chosen = range(self.leading("rows"))[start:stop]
        return self._part((len(chosen), *self.shape[1:]), chosen.start)

    def expert(self, index: int) -> FileTensor:
        return self._part(self.shape[1:], self.entry(index))

    def _part(self, shape: tuple[int, ...], first: int) -> FileTensor:
        row_bytes = prod(self.shape[1:]) * self.dtype.itemsize
        return FileTensor(self.name, shape, self.dtype, self._open, self._start + first * row_bytes)


class UnreadableTensor(DerivableTensor):
    """A tensor of a dtype that PyTorch does not have. It has a name and a shape, but no values; its dtype, which is not
    among PyTorch's, is given as uint8."""

    def __init__(self, name: str, shape: tuple[int, ...], stored_dtype: str, file: str) -> None:
        """
        Args:
            name: Its full name in the file.
            shape: In elements, of which one takes less than a byte.
            stored_dtype: As safetensors spells it.
            file: What to call the file.
        """
        super().__init__(name, shape, torch.uint8, file)
        self.stored_dtype = stored_dtype

    def read(self) -> torch.Tensor:
        """
        Raises:
            SourceError: always.
        """
        raise SourceError(
            f"{self.place} is stored as {self.stored_dtype}, of which PyTorch has no tensors; expected one of"
            f" {', '.join(TORCH_DTYPES)}"
        )
