"""Tensors that are known but not read: name, shape and dtype, and a way to get at the values.

A layer is handed all its tensors at once, each under the slot that it fills. Reading happens layer by layer, so that at
no time more than one layer is held in the precision of the source.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch


class Slot(NamedTuple):
    """The place of one stored tensor in a layer."""

    suffix: str
    """What it is: `weight`, `bias`, `weight_scale`, `input_scale`, …, as the checkpoint spells it."""
    part: str = ""
    """Which part of a merged layer (`q_proj`); empty for a layer that has one."""
    expert: int | None = None
    """Which expert; None for a layer without experts."""


class LazyTensor(ABC):
    """One tensor, or rows of one, not read yet."""

    def __init__(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, file: str) -> None:
        self.name = name
        """Its full name where it is stored."""
        self.shape = shape
        self.dtype = dtype
        self.file = file
        """Where it is stored, for messages; empty for a tensor in memory."""

    @property
    def copied_by_system(self) -> bool:
        """Whether `read_into` a tensor of the same dtype is left to the operating system, and computes nothing."""
        return False

    @abstractmethod
    def read(self) -> torch.Tensor:
        """The values, as stored.

        The result may be a view of a mapped file: it is good until the layer that it was handed to is loaded. Whoever
        keeps it copies it.
        """

    def read_into(self, target: torch.Tensor) -> None:
        """Copy the values into `target`, of the same shape; it may be of another dtype, or on another device.

        Raises:
            SourceError: the values cannot be read; `target` may then hold some of them.
        """
        target.copy_(self.read())

    @abstractmethod
    def rows(self, start: int, stop: int) -> LazyTensor:
        """Rows `start` to `stop` of the first dimension; the others are not read."""

    @abstractmethod
    def expert(self, index: int) -> LazyTensor:
        """One entry of the first dimension, which is dropped."""

    @abstractmethod
    def transposed(self) -> LazyTensor:
        """The same with its last two dimensions exchanged."""

    @property
    def place(self) -> str:
        """Name and file, for messages."""
        return f"{self.name!r} in {self.file}" if self.file else repr(self.name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.place}, {list(self.shape)}, {self.dtype})"


class MemoryTensor(LazyTensor):
    """A tensor that is in memory already."""

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        super().__init__(name, tuple(tensor.shape), tensor.dtype, "")
        self._tensor = tensor.detach()

    def read(self) -> torch.Tensor:
        return self._tensor.resolve_conj().resolve_neg()

    def rows(self, start: int, stop: int) -> MemoryTensor:
        return MemoryTensor(self.name, self._tensor[start:stop])

    def expert(self, index: int) -> MemoryTensor:
        return MemoryTensor(self.name, self._tensor[index])

    def transposed(self) -> MemoryTensor:
        return MemoryTensor(self.name, self._tensor.transpose(-2, -1))
