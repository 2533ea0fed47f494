"""The inventory: every layer of one model, as the policy engine sees it. Immutable."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Literal

from policyquant.findings import Finding
from policyquant.inventory.layers import LayerSet, StoredModel

_MODEL_DTYPES: Final[Mapping[str, str]] = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
"""What a model computes in: safetensors' spelling → PyTorch's."""


@dataclass(frozen=True, eq=False)
class Inventory:
    """Every layer of one model, folded into sets that differ in their indices only."""

    name: str
    architecture: str | None
    """Class name of the model (`MixtralForCausalLM`), if the source tells."""
    family: str | None
    """Which of our architecture data applies; None: the common spellings of an unknown family."""
    source: str
    config: Mapping[str, object] = field(repr=False)
    sets: tuple[LayerSet, ...] = field(repr=False)
    findings: tuple[Finding, ...] = field(repr=False)
    _stored: StoredModel = field(repr=False)

    @staticmethod
    def open(source: Any, *, revision: str | None = None, token: str | None = None) -> Inventory:
        """Read the layers of a model; headers only, never weights.

        Args:
            source: A directory with `config.json` and safetensors files, one `.safetensors` file, an index
                (`*.index.json`), a saved inventory, a Hub id (`hf://org/name[@revision]`), an `nn.Module`, or an
                iterable of (name, shape, dtype).
            revision: Branch, tag or commit of a Hub repository.
            token: For a private or gated Hub repository; None: `HF_TOKEN`, if it is set.

        Raises:
            SourceError: it does not exist, cannot be read, or is damaged. What is merely odd is in `findings`.
        """
        from policyquant.inventory.sources import open_source

        return Inventory.of(open_source(source, revision=revision, token=token))

    @staticmethod
    def from_tensors(
        tensors: Iterable[tuple[str, Sequence[int] | None, Any]],
        *,
        name: str = "",
        config: Mapping[str, object] | None = None,
        naming: Literal["checkpoint", "module"] | None = None,
    ) -> Inventory:
        """The layers of a model given as (name, shape, dtype) of each tensor.

        Args:
            tensors: Shapes may be None if they are unknown; dtypes too, else they are spelled as safetensors or
                PyTorch do, or a `torch.dtype`.
            name: What to call the model.
            config: What its `config.json` would hold.
            naming: Whose names they are; None: as the names themselves tell.

        Raises:
            SourceError: an entry is no such triple, or a name stands twice.
        """
        from policyquant.inventory.tensor_list import from_tensors

        return Inventory.of(from_tensors(tensors, name=name, config=config, naming=naming))

    @staticmethod
    def of(stored: StoredModel) -> Inventory:
        """Apply architecture data to what a source holds."""
        from policyquant.inventory.architectures.describe import describe

        description = describe(stored)
        architectures = stored.config.get("architectures")
        architecture = architectures[0] if isinstance(architectures, (list, tuple)) and architectures else None
        return Inventory(
            stored.name,
            architecture if isinstance(architecture, str) else None,
            description.family,
            stored.source,
            stored.config,
            description.sets,
            (*stored.findings, *description.findings),
            stored,
        )

    def with_classes(self, classes: Mapping[str, str]) -> Inventory:
        """The same model, where the class names of modules tell what no architecture data and no name does.

        Args:
            classes: Name of a layer as the source has it → class name of its module (`Linear`).
        """
        known = {name: kind for name, kind in classes.items() if name not in self._stored.module_types}
        if self.family is not None or not known:
            return self
        return Inventory.of(replace(self._stored, module_types={**self._stored.module_types, **known}))

    def with_shared(self, shared: Mapping[str, str]) -> Inventory:
        """The same model, where tensors are known to be one in the model that is loaded from it.

        Args:
            shared: Name of a tensor → name of the first that it is one with.
        """
        if not shared or shared.items() <= self._stored.shared.items():
            return self
        return Inventory.of(replace(self._stored, shared={**self._stored.shared, **shared}))

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...] | None, str | None]]:
        """(name, shape, dtype) of every tensor of the source, as it names and stores them; what is unknown is None."""
        from policyquant.inventory.layers import own_name

        for each in self._stored.sets:
            for layer in own_name(each.template).fill_all(each.indices):
                for tensor in each.tensors:
                    yield f"{layer}.{tensor.suffix}" if layer else tensor.suffix, tensor.shape, tensor.dtype

    def with_tensors(self, tensors: Iterable[tuple[str, Sequence[int] | None, Any]]) -> Inventory:
        """The same model with more tensors, each (name, shape, dtype) as for `from_tensors`.

        Raises:
            SourceError: an entry is no such triple, or the model has a tensor of this name.
        """
        from policyquant.inventory.tensor_list import from_tensors

        own = self._stored
        more = from_tensors((*self.tensors(), *tensors), name=own.name, config=own.config, naming=own.naming)
        return Inventory.of(replace(own, sets=more.sets))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what was read (not what was concluded) to a file that `open` reads back; `.gz` compresses it.

        Raises:
            PolicyQuantError: the file cannot be written; what was there is still there.
        """
        from policyquant.inventory.saved import save_inventory

        save_inventory(self._stored, path)

    def __len__(self) -> int:
        """How many layers the model has."""
        return sum(len(layer.indices) for layer in self.sets)

    @cached_property
    def model_dtype(self) -> str:
        """PyTorch name of the dtype of what is not quantized: what most unquantized weights are stored in, else what
        the configuration says, else what norms and biases are stored in, else bfloat16."""
        elements: dict[str, int] = {}
        for layer in self.sets:
            dtype = _MODEL_DTYPES.get(layer.dtype or "")
            if layer.stored is None and dtype is not None and layer.kind not in ("norm", "other"):
                elements[dtype] = elements.get(dtype, 0) + (layer.parameters or 1) * len(layer.indices)
        if elements:
            return max(elements, key=lambda dtype: elements[dtype])
        for key in ("dtype", "torch_dtype"):
            value = self.config.get(key)
            if isinstance(value, str) and value.removeprefix("torch.") in _MODEL_DTYPES.values():
                return value.removeprefix("torch.")
        return next(self._others_dtypes(), "bfloat16")

    def _others_dtypes(self) -> Iterator[str]:
        """Dtypes of norms, and of biases of layers that are stored quantized."""
        for layer in self.sets:
            for tensor in layer.tensors:
                dtype = _MODEL_DTYPES.get(tensor.dtype or "")
                if dtype and (tensor.suffix == "bias" or (tensor.suffix == "weight" and layer.stored is None)):
                    yield dtype
