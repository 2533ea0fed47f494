"""Tensors of which names, shapes and dtypes are known, and nothing else: those of a saved list or an inventory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, NoReturn

import torch

from policyquant.checkpoint.derived_tensor import DerivableTensor
from policyquant.checkpoint.file_tensor import TORCH_DTYPES, UnreadableTensor
from policyquant.checkpoint.reader import Tensors
from policyquant.checkpoint.tensors import LazyTensor
from policyquant.errors import SourceError
from policyquant.inventory.echo import path_shown, quoted
from policyquant.inventory.inventory import Inventory

_ENDINGS: Final = (".json", ".json.gz")


class DescribedTensor(DerivableTensor):
    """A tensor without values."""

    def read(self) -> NoReturn:
        """
        Raises:
            SourceError: always.
        """
        raise SourceError(f"{self.place} is described, and its values are not there")


class DescribedTensors(Tensors):
    """The tensors that an inventory lists."""

    def __init__(self, inventory: Inventory) -> None:
        """
        Raises:
            SourceError: the inventory does not know all shapes and dtypes, as one of an index alone.
        """
        self.label = path_shown(inventory.source) if inventory.source else inventory.name
        known: dict[str, tuple[tuple[int, ...], str]] = {}
        for name, shape, dtype in inventory.tensors():
            if shape is None or dtype is None:
                raise SourceError(
                    f"{self.label}: the shape or the dtype of {quoted(name)} is not known; give a source that has both"
                )
            known[name] = shape, dtype

        def tensor_of(name: str) -> LazyTensor:
            shape, dtype = known[name]
            torch_dtype = TORCH_DTYPES.get(dtype)
            if torch_dtype is None:
                return UnreadableTensor(name, shape, dtype, self.label)
            return DescribedTensor(name, shape, torch_dtype, self.label)

        super().__init__(known, tensor_of)


def described(source: str | os.PathLike[str] | Mapping[str, torch.Tensor] | Inventory) -> Inventory | None:
    """The inventory that a source is, or that its file lists; None for a source that has values."""
    if isinstance(source, Inventory):
        return source
    if not isinstance(source, (str, os.PathLike)) or not os.fspath(source).endswith(_ENDINGS):
        return None
    inventory = Inventory.open(source)
    # An index names tensors of files that lie beside it.
    return None if any(shape is None for _, shape, _ in inventory.tensors()) else inventory
