"""Inventories as files: policyquant's own form, and the plain list of tensors that other tools can write.

Our form keeps layers folded, as `StoredModel` does, so that 139,583 tensors are one small file:

    {"format": "policyquant-inventory", "version": 1, "name": …, "source": …, "naming": "checkpoint", "config": {…},
     "sets": [{"template": "model.layers.#.mlp.up_proj", "indices": [[0], [1]],
               "tensors": [["weight", "BF16", [8, 4]]]}],
     "module_types": {…}, "shared": {…}, "findings": [{"code": …, "level": …, "message": …, "layers": […]}]}

The plain form is `{"name": …, "architecture": …, "config": {…}, "tensors": {name: [dtype, shape]}}`, with
`v5_module_types` {module name: class name} if it is known. Either may be compressed with gzip.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Mapping
from typing import Any, Final, Literal

from policyquant.errors import SourceError
from policyquant.findings import Finding
from policyquant.inventory.collapse import MOST_INDEX, MOST_PARTS, Tensor, is_index
from policyquant.inventory.config_file import Config
from policyquant.inventory.dtypes import DTYPE_BITS
from policyquant.inventory.echo import quoted, value_shown
from policyquant.inventory.json_file import MOST_BYTES, parse_json
from policyquant.inventory.layers import INDEX, Indices, StoredModel, StoredSet, StoredTensor
from policyquant.inventory.shapes import shape_fault
from policyquant.inventory.stored_model import build_model
from policyquant.output_file import write_whole

FORMAT: Final = "policyquant-inventory"
VERSION: Final = 1

_GZIP: Final = b"\x1f\x8b"
_CODE = re.compile(r"PQ[0-9]{3}")
_MOST_MEMBERS: Final = 64
"""Of gzip files written one after another; each costs a copy of all that follow."""


def save_inventory(model: StoredModel, path: str | os.PathLike[str]) -> None:
    """Write a model's inventory; compressed if the name ends in `.gz`. The file appears whole or not at all.

    Raises:
        PolicyQuantError: it cannot be written.
    """
    path = os.fspath(path)
    data = (json.dumps(_as_json(model), ensure_ascii=False, separators=(",", ":")) + "\n").encode()
    if path.endswith(".gz"):
        import gzip

        data = gzip.compress(data, mtime=0)
    write_whole(path, data, made_from=(model.source,))


def _as_json(model: StoredModel) -> dict[str, object]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": model.name,
        "source": model.source,
        "naming": model.naming,
        "config": dict(model.config),
        "sets": [{"template": each.template, "indices": each.indices, "tensors": each.tensors} for each in model.sets],
        "module_types": dict(model.module_types),
        "shared": dict(model.shared),
        "findings": [finding._asdict() for finding in model.findings],
    }


def decompressed(data: bytes, file: str) -> bytes:
    """The content of a file that may be compressed.

    Raises:
        SourceError: it is damaged, or would unpack to more than any inventory has.
    """
    if not data.startswith(_GZIP):
        return data
    pieces = []
    total = 0
    try:
        for _ in range(_MOST_MEMBERS):
            unpacker = zlib.decompressobj(wbits=31)  # 31: a gzip header and the largest window.
            piece = unpacker.decompress(data, MOST_BYTES + 1 - total)
            pieces.append(piece)
            total += len(piece)
            if total > MOST_BYTES:
                raise SourceError(f"{file}: unpacks to more than {MOST_BYTES:,} bytes")
            if not unpacker.eof:
                raise SourceError(f"{file}: its compressed data end early; an incomplete download?")
            data = unpacker.unused_data.lstrip(b"\0")
            if not data:
                return b"".join(pieces)
    except zlib.error as error:
        raise SourceError(f"{file}: damaged gzip data: {error}") from None
    raise SourceError(f"{file}: more than {_MOST_MEMBERS} gzip files in one")


def parse_inventory(data: bytes, file: str) -> StoredModel:
    """The model in a saved inventory of either form.

    Raises:
        SourceError: with what is wrong, if it is none.
    """
    return inventory_from_json(parse_json(data, file), file)


def inventory_from_json(value: object, file: str) -> StoredModel:
    """As `parse_inventory`, of a value that is read already."""
    if isinstance(value, dict) and value.get("format") == FORMAT:
        return _own_form(value, file)
    if isinstance(value, dict) and isinstance(value.get("tensors"), dict):
        return _plain_form(value, file)
    raise SourceError(
        f'{file}: no inventory: expected an object with "format": "{FORMAT}", or one with "tensors": {{name: [dtype,'
        " shape]}"
    )


def _plain_form(value: dict[str, Any], file: str) -> StoredModel:
    config = _field(value, "config", dict, file, {})
    for key, told in (("model_type", value.get("model_type")), ("architectures", value.get("architecture"))):
        if isinstance(told, str) and config.get(key) is None:
            config = {**config, key: [told] if key == "architectures" else told}
    shapes: dict[tuple[int, ...], tuple[int, ...]] = {}
    tensors: list[Tensor] = []
    for name, entry in value["tensors"].items():
        if not isinstance(entry, list) or len(entry) != 2:
            raise SourceError(f"{file}: tensors: {quoted(name)} is {value_shown(entry)}; expected [dtype, shape]")
        dtype, shape = entry
        tensors.append((name, *_dtype_and_shape(dtype, shape, shapes, f"{file}: tensors: {quoted(name)}")))
    return build_model(
        _field(value, "name", str, file, ""),
        file,
        Config(config, ()),
        tensors,
        module_types=_strings(value.get("v5_module_types") or {}, "v5_module_types", file),
    )


def _own_form(value: dict[str, Any], file: str) -> StoredModel:
    version = value.get("version")
    if version != VERSION or type(version) is not int:
        raise SourceError(f"{file}: version {value_shown(version)} of {FORMAT}; this policyquant reads {VERSION}")
    naming = value.get("naming")
    if naming not in ("checkpoint", "module"):
        raise SourceError(f"{file}: naming is {value_shown(naming)}; expected 'checkpoint' or 'module'")
    checked: Literal["checkpoint", "module"] = "module" if naming == "module" else "checkpoint"
    seen: set[tuple[str, Indices]] = set()
    return StoredModel(
        name=_field(value, "name", str, file),
        source=_field(value, "source", str, file),
        config=_field(value, "config", dict, file),
        sets=tuple(_stored_set(each, seen, file) for each in _field(value, "sets", list, file)),
        naming=checked,
        module_types=_strings(_field(value, "module_types", dict, file, {}), "module_types", file),
        findings=tuple(_finding(each, file) for each in _field(value, "findings", list, file, [])),
        shared=_strings(_field(value, "shared", dict, file, {}), "shared", file),
    )


def _stored_set(value: object, seen: set[tuple[str, Indices]], file: str) -> StoredSet:
    if not isinstance(value, dict):
        raise SourceError(f"{file}: sets: found {value_shown(value)}; expected an object")
    template = _field(value, "template", str, file)
    place = f"{file}: sets: {quoted(template)}"
    parts = template.split(".")
    if len(parts) > MOST_PARTS + 1:  # A name is folded through its parent.
        raise SourceError(f"{place}: more than {MOST_PARTS + 1} parts")
    if any((INDEX in part and part != INDEX) or is_index(part) for part in parts):
        raise SourceError(f"{place}: no name template: an index is written {INDEX!r}, as a part of its own")
    width = parts.count(INDEX)
    indices = []
    for each in _field(value, "indices", list, file):
        if (
            not isinstance(each, list)
            or len(each) != width
            or not all(type(i) is int and 0 <= i < MOST_INDEX for i in each)
        ):
            raise SourceError(
                f"{place}: indices: found {value_shown(each)}; expected {width} integers, none negative,"
                " of at most nine digits"
            )
        indices.append(tuple(each))
    for key in indices:
        if (template, key) in seen:
            raise SourceError(f"{place}: the layer at {list(key)} stands twice")
        seen.add((template, key))
    if not indices:
        raise SourceError(f"{place}: no indices")
    tensors = []
    for entry in _field(value, "tensors", list, file):
        if not isinstance(entry, list) or len(entry) != 3 or not isinstance(entry[0], str):
            raise SourceError(f"{place}: tensors: found {value_shown(entry)}; expected [suffix, dtype, shape]")
        tensors.append(
            StoredTensor(entry[0], *_dtype_and_shape(entry[1], entry[2], {}, f"{place}: {quoted(entry[0])}"))
        )
    if len({tensor.suffix for tensor in tensors}) < len(tensors):
        raise SourceError(f"{place}: a tensor stands twice")
    return StoredSet(template, tuple(sorted(indices)), tuple(sorted(tensors, key=lambda tensor: tensor.suffix)))


def _dtype_and_shape(
    dtype: object, shape: object, known: dict[tuple[int, ...], tuple[int, ...]], place: str
) -> tuple[str | None, tuple[int, ...] | None]:
    if dtype is not None and (not isinstance(dtype, str) or dtype not in DTYPE_BITS):
        raise SourceError(f"{place}: unknown dtype {value_shown(dtype)}; expected one of safetensors', as BF16")
    if shape is None:
        return dtype, None
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise SourceError(f"{place}: shape is {value_shown(shape)}; expected a list of integers, none negative")
    fault = shape_fault(shape, dtype)
    if fault:
        raise SourceError(f"{place} has {fault}: {value_shown(shape)}")
    sizes = tuple(shape)
    return dtype, known.setdefault(sizes, sizes)


def _finding(value: object, file: str) -> Finding:
    if isinstance(value, dict):
        level = value.get("level")
        layers, rules = value.get("layers", []), value.get("rules", [])
        texts = (value.get("code"), value.get("message"))
        if (
            level in ("error", "warning", "note")
            and all(isinstance(text, str) for text in texts)
            and _CODE.fullmatch(str(texts[0]))
            and all(isinstance(names, list) and all(isinstance(n, str) for n in names) for names in (layers, rules))
        ):
            return Finding(str(texts[0]), level, str(texts[1]), tuple(layers), tuple(rules))
    raise SourceError(
        f"{file}: findings: found {value_shown(value)}; expected a code as PQ401, a level (error, warning or note),"
        " message, layers and rules"
    )


def _strings(value: object, what: str, file: str) -> Mapping[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise SourceError(f"{file}: {what}: expected an object of strings")
    return value


_REQUIRED: Final = object()


def _field(value: dict[str, Any], key: str, kind: type, file: str, default: object = _REQUIRED) -> Any:
    found = value.get(key, default)
    if found is _REQUIRED or not isinstance(found, kind):
        what = {"dict": "an object", "list": "a list", "str": "a string"}[kind.__name__]
        told = "nothing" if found is _REQUIRED else value_shown(found)
        raise SourceError(f"{file}: {key}: expected {what}, found {told}")
    return found
