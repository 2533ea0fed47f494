"""What a construction must not leave behind: layers outside the tree, and tensors without values."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from policyquant.building.meta_parameters import Recorder
from policyquant.layers.base import WeightLayer

_TORCHS_OWN: Final = frozenset({"_parameters", "_buffers", "_modules"})


def stray_layers(root: nn.Module, recorder: Recorder) -> list[str]:
    """One line for each place that made layers with parameters which are alive and not in the tree."""
    if _strays(root, recorder):
        gc.collect()  # a cycle alone keeps no layer in use
    counts = Counter((type(module).__name__, place) for module, place in _strays(root, recorder))
    return [
        f"{kind}{f' ({count} of them)' if count > 1 else ''} made at {place} is not part of the model: it is kept in a "
        "plain list, a dict or a closure, where neither a plan nor a checkpoint reaches it; "
        "keep it in nn.ModuleList or nn.ModuleDict, or as an attribute of a module"
        for (kind, place), count in counts.items()
    ]


def _strays(root: nn.Module, recorder: Recorder) -> list[tuple[nn.Module, str]]:
    inside = {id(module) for module in root.modules()}
    outside = [
        (module, place)
        for module, place in recorder.noticed()
        if id(module) not in inside and next(module.parameters(), None) is not None
    ]
    # Of a block that strays, name the block, not every layer in it.
    below = {id(child) for module, _ in outside for child in module.modules() if child is not module}
    return [(module, place) for module, place in outside if id(module) not in below]


def lazy_parameters(names: Mapping[nn.Module, tuple[str, ...]]) -> list[str]:
    """One line for each parameter in the tree that has no shape yet."""
    return [
        f"{type(module).__name__} {name!r}: its {key!r} has no shape before a first forward, so no plan can be made for"
        " it; use the class with all sizes given, as nn.Linear"
        for module, (name, *_) in names.items()
        for key, parameter in module._parameters.items()
        if _has_no_shape(parameter)
    ]


def _has_no_shape(parameter: Any) -> bool:
    return parameter is not None and is_lazy(parameter)


def valueless_tensors(names: Mapping[nn.Module, tuple[str, ...]]) -> list[str]:
    """One line for each buffer and tensor attribute in the tree that is on meta or has no shape yet."""
    parameters = {id(parameter) for module in names for parameter in module._parameters.values()}
    problems = []
    for module, (name, *_) in names.items():
        where = f"{type(module).__name__} {name!r}" if name else f"the root {type(module).__name__}"
        for attribute, tensor in _tensors(module):
            if is_lazy(tensor):
                problems.append(f"{where}: {attribute} has no shape before a first forward; give the class its sizes")
            elif tensor.is_meta and id(tensor) not in parameters:
                problems.append(
                    f"{where}: {attribute} was computed from a parameter, or made on the meta device, and has no "
                    "values; parameters get theirs from the checkpoint after construction: compute it in forward"
                )
    return problems


def _tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, buffer in module._buffers.items():
        # Codes and scales that a method created are filled when the model is loaded.
        if buffer is not None and not (isinstance(module, WeightLayer) and name in module.method_tensors):
            yield f"buffer {name!r}", buffer
    for name, value in vars(module).items():
        if name in _TORCHS_OWN:
            continue
        if isinstance(value, torch.Tensor):
            yield f"attribute {name!r}", value
        elif isinstance(value, (dict, list, tuple)) and value:  # most are torch's own, and empty
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                if isinstance(item, torch.Tensor):
                    yield f"attribute {f'{name}[{key!r}]'!r}", item
