"""Tensors made of others, not read yet either: parts of one, one with dimensions exchanged, several as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from policyquant.checkpoint.tensors import LazyTensor


class DerivableTensor(LazyTensor):
    """A tensor whose rows and entries are taken after all of it was read."""

    def rows(self, start: int, stop: int) -> LazyTensor:
        size = self.leading("rows")
        return ChangedTensor(self, (len(range(size)[start:stop]), *self.shape[1:]), lambda tensor: tensor[start:stop])

    def expert(self, index: int) -> LazyTensor:
        self.entry(index)
        return ChangedTensor(self, self.shape[1:], lambda tensor: tensor[index])

    def transposed(self) -> LazyTensor:
        if len(self.shape) < 2:
            raise IndexError(f"{self.place} of shape {list(self.shape)} has no two dimensions to exchange")
        return TransposedTensor(self)

    def leading(self, what: str) -> int:
        if not self.shape:
            raise IndexError(f"{self.place} is a scalar, which has no {what}")
        return self.shape[0]

    def entry(self, index: int) -> int:
        """The index counted from the first entry."""
        size = self.leading("entries")
        if not -size <= index < size:
            raise IndexError(f"{self.place} of shape {list(self.shape)} has no entry {index}")
        return index % size


class ChangedTensor(DerivableTensor):
    """What becomes of a tensor after it was read."""

    def __init__(
        self, source: LazyTensor, shape: tuple[int, ...], change: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        super().__init__(source.name, shape, source.dtype, source.file)
        self._source = source
        self._change = change

    def read(self) -> torch.Tensor:
        return self._change(self._source.read())


class TransposedTensor(ChangedTensor):
    """A tensor with its last two dimensions exchanged. If there are more, the first is the source's, which reads less
    of it."""

    def __init__(self, source: LazyTensor) -> None:
        *leading, rows, columns = source.shape
        super().__init__(source, (*leading, columns, rows), lambda tensor: tensor.transpose(-2, -1))

    def rows(self, start: int, stop: int) -> LazyTensor:
        if len(self.shape) == 2:
            return super().rows(start, stop)
        return TransposedTensor(self._source.rows(start, stop))

    def expert(self, index: int) -> LazyTensor:
        if len(self.shape) == 2:
            return super().expert(index)
        return TransposedTensor(self._source.expert(index))

    def transposed(self) -> LazyTensor:
        return self._source


class StackedTensor(DerivableTensor):
    """Several tensors as one: their rows under one another, or each an entry of a new first dimension."""

    def __init__(self, sources: Sequence[LazyTensor], *, entries: bool = False) -> None:
        """
        Args:
            sources: At least one; alike in dtype, and in shape but for the number of rows.
            entries: Whether each becomes one entry, for which all have the same shape.
        """
        first, last = sources[0], sources[-1]
        rows = len(sources) if entries else sum(source.shape[0] for source in sources)
        shape = (rows, *(first.shape if entries else first.shape[1:]))
        super().__init__(f"{first.name} … {last.name}", shape, first.dtype, first.file)
        self._sources = sources
        self._entries = entries

    def read(self) -> torch.Tensor:
        values = [each.read() for each in self._sources]
        return torch.stack(values) if self._entries else torch.cat(values)

    @property
    def copied_by_system(self) -> bool:
        """If all of them are."""
        return all(each.copied_by_system for each in self._sources)

    def read_into(self, target: torch.Tensor) -> None:
        """Copy each of them into its place in `target`."""
        start = 0
        for index, source in enumerate(self._sources):
            if self._entries:
                source.read_into(target[index])
            else:
                source.read_into(target[start : start + source.shape[0]])
                start += source.shape[0]

    def rows(self, start: int, stop: int) -> LazyTensor:
        chosen = range(self.shape[0])[start:stop]
        if not chosen:
            return super().rows(start, stop)
        if self._entries:
            return StackedTensor(self._sources[start:stop], entries=True)
        pieces, before = [], 0
        for source in self._sources:
            first, last = max(chosen.start - before, 0), min(chosen.stop - before, source.shape[0])
            if first < last:
                pieces.append(source.rows(first, last))
            before += source.shape[0]
        return pieces[0] if len(pieces) == 1 else StackedTensor(pieces)

    def expert(self, index: int) -> LazyTensor:
        return self._sources[self.entry(index)] if self._entries else super().expert(index)
