"""Headers of safetensors files, read strictly and without any other library.

A file is an unsigned 64-bit little-endian length, that many bytes of JSON, then the tensors' bytes. The header tells
for each tensor its dtype, its shape and where its bytes lie, counted from the header's end. Everything that the format
promises is checked (lengths against the file before anything is read, ranges without overlap or hole, sizes equal to
shape times dtype), so that whoever reads weights later can rely on it. Names are data: any string that is text is one,
`../../etc/x` and the empty string too, and none is ever used as a path.
"""

from __future__ import annotations

import os
from math import prod
from typing import Final, NamedTuple

from policyquant.errors import SourceError, did_you_mean
from policyquant.inventory.collapse import Tensor
from policyquant.inventory.dtypes import DTYPE_BITS
from policyquant.inventory.echo import count_shown, path_shown, quoted, value_shown
from policyquant.inventory.json_file import open_regular, parse_json
from policyquant.inventory.shapes import shape_fault

LENGTH_BYTES: Final = 8
MOST_HEADER_BYTES: Final = 100_000_000
"""The format's own limit."""

_MOST_TOTAL_BYTES: Final = 128 * 1024 * 1024
"""Of all headers of one model: Kimi-K2's have 20 MB, and each byte becomes some ten in memory."""


class Header(NamedTuple):
    """What a safetensors file says about its tensors."""

    tensors: tuple[Tensor, ...]
    """In the order of the header."""
    metadata: dict[str, str]
    """The file's `__metadata__`."""
    data_start: int
    """Offset of the first tensor byte in the file."""
    offsets: dict[str, tuple[int, int]]
    """Tensor name → first byte and end, counted from `data_start`."""


class HeaderBudget:
    """Bounds what the headers of one model's shards take together."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._left = _MOST_TOTAL_BYTES

    def spend(self, header: Header | None) -> Header | None:
        """The header, without its metadata, which nobody needs of a shard.

        Raises:
            SourceError: all headers so far are larger than those of any model.
        """
        if header is None:
            return None
        self._left -= header.data_start
        if self._left < 0:
            raise SourceError(f"{self._source}: the headers of its files have more than {_MOST_TOTAL_BYTES:,} bytes")
        return header._replace(metadata={})


def read_header(path: str, label: str | None = None) -> Header:
    """The header of a safetensors file.

    Args:
        path: Where it lies.
        label: What to call it in errors; None: its path.

    Raises:
        SourceError: the file is missing, or no safetensors file in every respect.
    """
    label = path_shown(path) if label is None else label
    with open_regular(path, label) as descriptor:
        return header_of(descriptor, label)


def header_of(descriptor: int, label: str) -> Header:
    """The header of a safetensors file that is open and at its beginning.

    Raises:
        OSError: it cannot be read.
        SourceError: it is no safetensors file in every respect.
    """
    size = os.fstat(descriptor).st_size
    start = os.read(descriptor, LENGTH_BYTES)
    length = header_length(start, size, label)
    pieces = []
    left = length
    while left:
        piece = os.read(descriptor, left)
        if not piece:
            raise SourceError(f"{label}: ends within its header")
        pieces.append(piece)
        left -= len(piece)
    return parse_header(b"".join(pieces), size, label)


def header_length(start: bytes, file_size: int, file: str) -> int:
    """The length of the header from a file's first eight bytes, checked against the file's size.

    Raises:
        SourceError: these bytes cannot begin a safetensors file of that size.
    """
    if file_size == 0:
        raise SourceError(f"{file}: empty; expected a safetensors file")
    if file_size < LENGTH_BYTES or len(start) < LENGTH_BYTES:
        raise SourceError(f"{file}: {file_size} bytes; a safetensors file has at least {LENGTH_BYTES}")
    length = int.from_bytes(start[:LENGTH_BYTES], "little")
    other = _other_format(start) if length > min(MOST_HEADER_BYTES, file_size - LENGTH_BYTES) else None
    if other:
        raise SourceError(f"{file}: {other}")
    if length > MOST_HEADER_BYTES:
        raise SourceError(
            f"{file}: says that its header has {length:,} bytes; the format allows {MOST_HEADER_BYTES:,}."
            " Not a safetensors file, or a damaged one"
        )
    if length > file_size - LENGTH_BYTES:
        raise SourceError(
            f"{file}: says that its header has {length:,} bytes, but only {file_size - LENGTH_BYTES:,} follow;"
            " truncated, or not a safetensors file"
        )
    return length


def _other_format(start: bytes) -> str | None:
    """What a file that is no safetensors file is instead, by its first bytes."""
    if start.startswith(b"version "):
        return "a Git LFS pointer, not the weights themselves; run `git lfs pull`"
    if start.startswith(b"PK"):
        return "a zip archive, as torch.save writes (pickle); it is never opened. Convert it to safetensors"
    if start[:1] == b"\x80":
        return "a Python pickle; it is never opened. Convert it to safetensors"
    if start.startswith(b"GGUF"):
        return "a GGUF file; expected safetensors"
    return None


def parse_header(header: bytes, file_size: int, file: str) -> Header:
    """Check and take apart a header's JSON.

    Raises:
        SourceError: with what is wrong and in which tensor.
    """
    if not header.startswith(b"{"):
        raise SourceError(f"{file}: its header does not begin with {{; not a safetensors file, or a damaged one")
    entries = parse_json(header, f"{file} (header)")
    if not isinstance(entries, dict):  # `{` at the start leaves nothing else, but this is not the place to rely on it.
        raise SourceError(f"{file}: its header is no JSON object")
    metadata = _metadata(entries.pop("__metadata__", {}), file)
    tensors: list[Tensor] = []
    offsets: dict[str, tuple[int, int]] = {}
    sizes: dict[tuple[str, tuple[int, ...]], int] = {}
    shapes: dict[tuple[int, ...], tuple[int, ...]] = {}
    for name, entry in entries.items():
        try:
            dtype, shape = entry["dtype"], tuple(entry["shape"])
            start, end = entry["data_offsets"]
        except (TypeError, KeyError, ValueError):
            raise _malformed(name, entry, file) from None
        key = (dtype, shape)
        try:
            size = sizes.get(key)
            # A bool is equal to an int as a key, and so is 2.0: only shapes of plain ints are ever stored.
            if size is None or any(type(dimension) is not int for dimension in shape):
                size = sizes[key] = _size(name, dtype, entry["shape"], file)
        except TypeError:
            raise _malformed(name, entry, file) from None
        if type(start) is not int or type(end) is not int or start < 0 or end < start:
            raise SourceError(
                f"{file}: tensor {quoted(name)}: data_offsets are {value_shown(entry['data_offsets'])};"
                " expected two integers, the second not below the first"
            )
        if end - start != size:
            raise SourceError(
                f"{file}: tensor {quoted(name)}: {dtype} {value_shown(list(shape))} takes {size:,} bytes,"
                f" but its data_offsets span {count_shown(end - start)}"
            )
        offsets[name] = (start, end)
        tensors.append((name, dtype, shapes.setdefault(shape, shape)))
    _check_ranges(offsets, file_size - LENGTH_BYTES - len(header), file)
    return Header(tuple(tensors), metadata, LENGTH_BYTES + len(header), offsets)


def _metadata(value: object, file: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise SourceError(f"{file}: __metadata__ is {value_shown(value)}; expected an object of strings")
    for key, text in value.items():
        if not isinstance(text, str):
            raise SourceError(f"{file}: __metadata__ has {value_shown(text)} for {quoted(key)}; expected a string")
    return value


def _malformed(name: str, entry: object, file: str) -> SourceError:
    if isinstance(entry, dict):
        missing = [field for field in ("dtype", "shape", "data_offsets") if field not in entry]
        if missing:
            return SourceError(f"{file}: tensor {quoted(name)} has no {', '.join(missing)}")
        for field in ("shape", "data_offsets"):
            if not isinstance(entry[field], list):
                return SourceError(
                    f"{file}: tensor {quoted(name)}: {field} is {value_shown(entry[field])}; expected a list"
                )
        return SourceError(
            f"{file}: tensor {quoted(name)}: dtype {value_shown(entry['dtype'])}, shape {value_shown(entry['shape'])},"
            f" data_offsets {value_shown(entry['data_offsets'])}; expected a name, a list of integers and two integers"
        )
    return SourceError(
        f"{file}: tensor {quoted(name)} is {value_shown(entry)}; expected an object with dtype, shape and data_offsets"
    )


def _size(name: str, dtype: object, shape: object, file: str) -> int:
    """Bytes of one tensor, all checked."""
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        known = did_you_mean(dtype, DTYPE_BITS) if isinstance(dtype, str) else ""
        raise SourceError(f"{file}: tensor {quoted(name)}: unknown dtype {value_shown(dtype)}{known}")
    if not isinstance(shape, list) or any(type(dimension) is not int or dimension < 0 for dimension in shape):
        raise SourceError(
            f"{file}: tensor {quoted(name)}: shape is {value_shown(shape)};"
            " expected a list of integers that are not negative"
        )
    fault = shape_fault(shape, dtype)
    if fault:
        raise SourceError(f"{file}: tensor {quoted(name)} has {fault}: {value_shown(shape)}")
    bits = prod(shape) * DTYPE_BITS[dtype]
    if bits % 8:
        raise SourceError(
            f"{file}: tensor {quoted(name)}: {dtype} {value_shown(shape)} has {bits:,} bits, which fill no whole bytes"
        )
    return bits // 8


def _check_ranges(offsets: dict[str, tuple[int, int]], data_size: int, file: str) -> None:
    """The ranges must follow each other without overlap or hole, from the header's end to the end of the file."""
    reached, before = 0, ""
    for name, (start, end) in sorted(offsets.items(), key=lambda item: item[1]):
        if start == reached:
            reached, before = end, name
            continue
        place = f"{count_shown(min(start, reached))} to {count_shown(max(start, reached))}"
        if start < reached:
            raise SourceError(f"{file}: tensors {quoted(before)} and {quoted(name)} overlap in bytes {place}")
        raise SourceError(f"{file}: bytes {place} belong to no tensor (a hole before {quoted(name)})")
    if reached > data_size:
        raise SourceError(
            f"{file}: truncated: its tensors take {count_shown(reached)} bytes, {data_size:,} are there;"
            " an incomplete download?"
        )
    if reached < data_size:
        raise SourceError(f"{file}: {data_size - reached:,} bytes after the last tensor belong to none")
