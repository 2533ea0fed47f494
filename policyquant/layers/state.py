"""State dicts of layers with a plan: what does not fit a layer's scheme is refused by name, and never converted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import torch

from policyquant.methods.base import PLAIN_DTYPES

if TYPE_CHECKING:
    from policyquant.layers.base import WeightLayer


def misfits(layer: WeightLayer, state_dict: Mapping[str, object], prefix: str) -> Iterator[str]:
    """Why the entries of `state_dict` under `prefix` cannot be the layer's tensors, one sentence each.

    Entries that a layer lacks or does not know are left to torch, which lists them, unless the layer would be loaded
    by half: codes and their scales come together.
    """
    stored = {name: each for name, each in layer._buffers.items() if each is not None and name in layer.method_tensors}
    found = {name: state_dict[prefix + name] for name in stored if prefix + name in state_dict}
    for name, tensor in found.items():
        own = stored[name]
        if not isinstance(tensor, torch.Tensor):
            yield f"{prefix}{name} is a {type(tensor).__name__}, not a tensor"
        elif tensor.dtype != own.dtype or tensor.shape != own.shape:
            yield (
                f"{prefix}{name} is {_described(tensor)}, but the layer is {layer.scheme} and stores {_described(own)}:"
                " the state was saved under another scheme"
            )
    if found and len(found) < len(stored):
        absent = ", ".join(f"{prefix}{name}" for name in stored if name not in found)
        yield f"{', '.join(prefix + name for name in found)} cannot be loaded without {absent}"
    weight = state_dict.get(f"{prefix}weight")
    plain = layer._parameters.get("weight")
    if plain is not None and isinstance(weight, torch.Tensor) and not _is_plain(weight) and _is_plain(plain):
        yield (
            f"{prefix}weight is {_described(weight)}, codes of a quantized layer, but the layer is {layer.scheme} and"
            f" stores {_described(plain)}: the state was saved under another scheme"
        )


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.dtype in PLAIN_DTYPES or tensor.dtype == torch.float64


def _described(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
