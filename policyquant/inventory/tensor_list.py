"""Tensors listed from Python: any iterable of (name, shape, dtype)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Literal

from policyquant.errors import SourceError, did_you_mean
from policyquant.inventory.architectures import likely_naming
from policyquant.inventory.collapse import Tensor
from policyquant.inventory.config_file import Config
from policyquant.inventory.dtypes import PACKED_FP4, dtype_spellings, safetensors_dtype
from policyquant.inventory.echo import quoted, value_shown
from policyquant.inventory.layers import StoredModel
from policyquant.inventory.shapes import MOST_DIMENSIONS, shape_fault
from policyquant.inventory.stored_model import build_model


def from_tensors(
    tensors: Iterable[tuple[str, Any, Any]],
    *,
    name: str = "",
    config: Mapping[str, object] | None = None,
    naming: Literal["checkpoint", "module"] | None = None,
) -> StoredModel:
    """A model from a list of its tensors.

    Args:
        tensors: (name, shape, dtype) each. Shape: integers, or None if unknown. Dtype: as safetensors or PyTorch
            spell it, a `torch.dtype`, or None if unknown.
        name: What to call the model.
        config: Values as of a `config.json`.
        naming: Whether the names are those of a checkpoint or of a module tree; None: as architecture data tells.

    Raises:
        SourceError: an entry is no such triple, or a name stands twice.
    """
    source = name or "a list of tensors"
    listed: dict[str, Tensor] = {}
    for entry in tensors:
        if isinstance(entry, (str, bytes)):
            raise SourceError(f"{source}: found {value_shown(entry)}; expected (name, shape, dtype)")
        try:
            tensor, shape, dtype = entry
        except (TypeError, ValueError):
            raise SourceError(f"{source}: found {value_shown(entry)}; expected (name, shape, dtype)") from None
        if not isinstance(tensor, str):
            raise SourceError(f"{source}: a tensor's name is {value_shown(tensor)}; expected a string")
        if tensor in listed:
            raise SourceError(f"{source}: the tensor {quoted(tensor)} stands twice")
        listed[tensor] = (tensor, *stored_form(shape, dtype, f"{source}: {quoted(tensor)}"))
    model = build_model(name, source, Config(config or {}, ()), listed.values(), naming=naming or "checkpoint")
    return model if naming else replace(model, naming=likely_naming(model.config, model.sets))


def stored_form(shape: Any, dtype: Any, place: str) -> tuple[str | None, tuple[int, ...] | None]:
    """Dtype and shape as safetensors has them.

    Raises:
        SourceError: with `place`, if they are none.
    """
    sizes = None if shape is None else _sizes(shape, place)
    stored, sizes = _spelled(sizes, dtype, place)
    fault = None if sizes is None else shape_fault(sizes, stored)
    if fault:
        raise SourceError(f"{place} has {fault}: {value_shown(sizes)}")
    return stored, sizes


def _spelled(sizes: tuple[int, ...] | None, dtype: Any, place: str) -> tuple[str | None, tuple[int, ...] | None]:
    if dtype is None:
        return None, sizes
    if str(dtype).removeprefix("torch.") == PACKED_FP4:
        return "F4", None if sizes is None else (*sizes[:-1], sizes[-1] * 2) if sizes else (2,)
    spelled = safetensors_dtype(dtype)
    if spelled is None:
        text = str(dtype)[:40]
        raise SourceError(f"{place}: safetensors has no dtype {quoted(text)}{did_you_mean(text, dtype_spellings())}")
    return spelled, sizes


def _sizes(shape: Any, place: str) -> tuple[int, ...]:
    try:
        # One more than may be is enough to refuse them, however many more there are.
        # NumPy's and PyTorch's integers are none of Python's; `__index__` is what they share. A float has none.
        sizes = tuple(size.__index__() for size in islice(shape, MOST_DIMENSIONS + 1))
    except (TypeError, AttributeError):
        raise SourceError(f"{place}: shape is {value_shown(shape)}; expected integers, or None if unknown") from None
    if any(size < 0 for size in sizes):
        raise SourceError(f"{place}: shape is {value_shown(list(sizes))}; none of its sizes may be negative")
    return sizes
