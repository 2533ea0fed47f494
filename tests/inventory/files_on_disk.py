"""Writes small checkpoints for the tests of this folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

from policyquant.errors import SourceError
from policyquant.inventory.dtypes import DTYPE_BITS

DATA = Path(__file__).parents[1] / "data"
CHECKPOINTS = DATA / "checkpoints"
MODELS = DATA / "models"

Tensors = dict[str, tuple[str, list[int]]]


def header_of(tensors: Tensors) -> dict[str, Any]:
    """A safetensors header that lays the tensors out one after another."""
    header: dict[str, Any] = {}
    end = 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + prod(shape) * DTYPE_BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    return header


def safetensors_bytes(header: object, data: int | None = None) -> bytes:
    """A safetensors file with zeros for weights: `data` bytes, or as many as the header's last offset says."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    if data is None:
        assert isinstance(header, dict)
        data = max((entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__"), default=0)
    return len(text).to_bytes(8, "little") + text + bytes(data)


def write_model(
    directory: Path, tensors: Tensors, config: dict[str, Any] | None = None, name: str = "model.safetensors"
) -> Path:
    """A directory with one file of weights and, if given, a config."""
    directory.mkdir(exist_ok=True)
    (directory / name).write_bytes(safetensors_bytes(header_of(tensors)))
    if config is not None:
        (directory / "config.json").write_text(json.dumps(config))
    return directory


def write_index(directory: Path, weight_map: dict[str, str], total_size: object = None) -> Path:
    """An index beside the shards."""
    index: dict[str, Any] = {"weight_map": weight_map}
    if total_size is not None:
        index["metadata"] = {"total_size": total_size}
    path = directory / "model.safetensors.index.json"
    path.write_text(json.dumps(index))
    return path


def refusal(call: Callable[[], object]) -> str:
    """The message with which a call is refused; empty if it is not. Any other exception passes through."""
    try:
        call()
    except SourceError as error:
        return str(error)
    return ""
