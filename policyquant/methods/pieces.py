"""What the methods share about the tensors of a layer: its pieces, runs of rows, and what may not be loaded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import torch

from policyquant.checkpoint.tensors import LazyTensor, Slot
from policyquant.errors import PolicyQuantError
from policyquant.kernels.cpu.quantize import largest_magnitude
from policyquant.methods.base import PLAIN_DTYPES, WeightLayer

_CHUNK_ELEMENTS: Final = 1 << 20
"""Weights are converted in runs of rows of about so many elements (4 MiB in float32), to keep peak memory small."""


def pieces(layer: WeightLayer) -> Iterator[tuple[int | None, str, slice]]:
    """Every expert's every part, with its rows."""
    for expert in (None,) if layer.num_experts is None else range(layer.num_experts):
        start = 0
        for part, rows in layer.parts.items():
            yield expert, part, slice(start, start + rows)
            start += rows


def by_row(layer: WeightLayer, scale: torch.Tensor) -> torch.Tensor:
    """One scale for each part [.., P] → one for each row [.., N, 1]."""
    pieces = [scale[..., i : i + 1].expand(*scale.shape[:-1], rows) for i, rows in enumerate(layer.parts.values())]
    return torch.cat(pieces, dim=-1).unsqueeze(-1)


def buffer(layer: WeightLayer, name: str) -> torch.Tensor:
    tensor = layer._buffers[name]
    assert tensor is not None
    return tensor


def entry(tensor: torch.Tensor, expert: int | None) -> torch.Tensor:
    return tensor if expert is None else tensor[expert]


def runs(shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Runs of rows that are converted at a time."""
    step = max(1, _CHUNK_ELEMENTS // max(1, shape[1]))
    for start in range(0, shape[0], step):
        yield start, min(start + step, shape[0])


def refuse_nonfinite(source: LazyTensor, values: torch.Tensor, start: int) -> torch.Tensor:
    """Look for NaN and infinity in rows of a weight from row `start` on.

    Returns the largest magnitude in each row, [rows, 1] float32, which is what it looked at.

    Raises:
        PolicyQuantError: they hold NaN or infinity; the tensor and the index are named.
    """
    largest = largest_magnitude(values)
    if not bool(largest.isfinite().all()):
        exact = values.to(torch.float32)
        row, column = (~exact.isfinite()).nonzero()[0].tolist()
        found = float(exact[row, column])
        raise PolicyQuantError(f"{source.place} holds {found} at [{start + row}, {column}]; a weight must be finite")
    return largest


def place_of(layer: WeightLayer, part: str, expert: int | None) -> str:
    text = layer.layer_name + (f", expert {expert}" if expert is not None else "")
    return f"{text}, {part}" if part else text


def misshapen(where: str, tensor: LazyTensor, expected: list[tuple[int, ...]]) -> Iterator[str]:
    if tensor.shape not in expected:
        shapes = " or ".join(str(list(shape)) for shape in expected)
        yield f"{where}: {tensor.place} has shape {list(tensor.shape)}; expected {shapes}"


def not_plain(where: str, tensor: LazyTensor) -> Iterator[str]:
    if tensor.dtype not in PLAIN_DTYPES:
        yield f"{where}: {tensor.place} is stored as {tensor.dtype}; expected float32, float16 or bfloat16"


def check_places(layer: WeightLayer, tensors: Mapping[Slot, LazyTensor], suffixes: frozenset[str]) -> Iterator[str]:
    """Tensors for which the layer has no place; `suffixes` are those that the method knows."""
    expected = {(part, expert) for expert, part, _ in pieces(layer)}
    for slot, tensor in tensors.items():
        known = slot.suffix in suffixes and (slot.suffix != "bias" or layer.has_bias)
        if not known or (slot.part, slot.expert) not in expected:
            yield f"{layer.layer_name}: {tensor.place} has no place in this layer"


def check_plain_weight(
    layer: WeightLayer, tensors: Mapping[Slot, LazyTensor], part: str, expert: int | None, rows: int
) -> Iterator[str]:
    """What is wrong with one piece's weight, if it can be read from plain floats only."""
    place = place_of(layer, part, expert)
    weight = tensors.get(Slot("weight", part, expert))
    if weight is None:
        yield f"{place}: no weight is stored"
    else:
        yield from misshapen(place, weight, [(rows, layer.in_features)])
        yield from not_plain(place, weight)


def check_bias(
    layer: WeightLayer, tensors: Mapping[Slot, LazyTensor], part: str, expert: int | None, rows: int
) -> Iterator[str]:
    """What is wrong with one piece's bias."""
    if not layer.has_bias:
        return
    place = place_of(layer, part, expert)
    bias = tensors.get(Slot("bias", part, expert))
    if bias is None:
        yield f"{place}: no bias is stored"
    else:
        yield from misshapen(place, bias, [(rows,)])
        yield from not_plain(place, bias)


def create_bias(layer: WeightLayer, device: torch.device) -> None:
    """[N] or [experts, N] in the layer's dtype; one that is on this device keeps its values."""
    bias = layer._parameters.get("bias")
    if not layer.has_bias:
        return
    if bias is None or bias.device != device:
        rows = (layer.out_features,) if layer.num_experts is None else (layer.num_experts, layer.out_features)
        empty = torch.empty(rows, dtype=layer.params_dtype, device=device)
        layer.register_parameter("bias", torch.nn.Parameter(empty))
    elif bias.dtype != layer.params_dtype:
        converted = bias.detach().to(layer.params_dtype)
        layer.register_parameter("bias", torch.nn.Parameter(converted, bias.requires_grad))


def load_bias(layer: WeightLayer, tensors: Mapping[Slot, LazyTensor]) -> None:
    """Copy the bias of every piece."""
    bias = layer._parameters.get("bias")
    if bias is not None:
        with torch.no_grad():
            for expert, part, rows in pieces(layer):
                tensors[Slot("bias", part, expert)].read_into(entry(bias, expert)[rows])
