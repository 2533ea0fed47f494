"""A plan's file → the plan. The inverse of `Plan.to_json`: what is read and written again is the same text.

Our own layout has one layer a line. Each is then parsed by itself and folded at once, which takes a fraction of the
time and memory that the whole document would. A file that another tool has laid out anew is parsed as a whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from policyquant.errors import PolicyQuantError, SourceError
from policyquant.findings import Finding
from policyquant.inventory.json_file import MOST_VALUES, parse_json, read_file
from policyquant.inventory.saved import decompressed
from policyquant.plan import json_values as read
from policyquant.plan.fold_layers import fold_layers
from policyquant.plan.json_values import Place
from policyquant.plan.plan import FORMAT_VERSION, ModelInfo, Plan, PolicyInfo
from policyquant.plan.rows import Row
from policyquant.plan.summary import summary_json

_BEGIN: Final = b'\n "layers": [\n'
_END: Final = b'\n ],\n "findings": ['

_MOST_VALUES_OF_LAYER: Final = 500_000
"""Of one line. A layer that 10,000 rules reached has 60,000."""

_LEVELS: Final = ("error", "warning", "note")


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """Read a plan that `policyquant plan` or `inspect --json` wrote, compressed with gzip or not.

    It can do all that a plan just resolved can, except `explain`, and finding a layer by other names than its
    checkpoint name.

    Raises:
        SourceError: there is no such file, it is no plan, or it contradicts itself. Says where and what was expected.
        PolicyQuantError: `path` is no path.
    """
    if not isinstance(path, str | os.PathLike):
        raise PolicyQuantError(f"read_plan takes the path of a plan, not {type(path).__name__}")
    file = os.fspath(path)
    return parse_plan(decompressed(read_file(file), file), file)


def parse_plan(data: bytes, file: str) -> Plan:
    """The plan in a file's content; `file` is what errors call it.

    Raises:
        SourceError: as `read_plan`.
    """
    try:
        return _parse(data, file)
    except RecursionError:
        raise SourceError(f"{file}: nested too deeply") from None


def _parse(data: bytes, file: str) -> Plan:
    begin, end = data.find(_BEGIN), data.rfind(_END)
    if 0 <= begin <= end - len(_BEGIN) + 1:
        try:
            return _by_lines(data, begin + len(_BEGIN), end, file)
        except _OtherLayoutError as problem:
            # A larger document would not be read as a whole; then the line that cannot be read is the better answer.
            if data.count(b",") > MOST_VALUES:
                raise SourceError(str(problem)) from None
    document = parse_json(data, file)
    value = _envelope(document, file)
    layers = read.items(value["layers"], Place(file, "layers"))
    return _plan(value, fold_layers((Place(file, f"layers[{i}]"), each) for i, each in enumerate(layers)), file)


class _OtherLayoutError(Exception):
    """A line between `"layers": [` and `],` is not one layer: another layout, or no JSON at all."""


def _by_lines(data: bytes, start: int, end: int, file: str) -> Plan:
    # Empty lines in place of the layers, so that what is wrong after them is said to be where it is.
    lines = b"\n" * data.count(b"\n", start, end + 1)
    value = _envelope(parse_json(data[:start] + lines + data[end + 1 :], file), file)
    return _plan(value, fold_layers(_layers(data, start, end, data.count(b"\n", 0, start) + 1, file)), file)


def _layers(data: bytes, start: int, end: int, line: int, file: str) -> Iterator[tuple[Place, Any]]:
    """The layers between two positions, one a line."""
    decode = json.JSONDecoder(object_pairs_hook=_object).decode
    index = 0
    while start < end:
        stop = data.find(b"\n", start, end)
        stop = end if stop < 0 else stop
        text_stop = stop
        if stop < end:
            if data[stop - 1 : stop] != b",":
                raise _OtherLayoutError(f"{file}:{line}: layers[{index}]: expected a comma at the end of the line")
            text_stop = stop - 1
        place = Place(f"{file}:{line}", f"layers[{index}]")
        raw = data[start:text_stop]
        if raw.count(b",") + raw.count(b"[") + raw.count(b"{") > _MOST_VALUES_OF_LAYER:
            raise place.error(f"more than {_MOST_VALUES_OF_LAYER:,} values")
        try:
            layer = decode(raw.decode())
            if b"\\u" in raw:
                json.dumps(layer, ensure_ascii=False).encode()
        except _TwiceError as problem:
            raise place.error(str(problem)) from None
        except UnicodeEncodeError:
            raise place.error("a string has half of a surrogate pair (\\ud800 to \\udfff)") from None
        except ValueError as problem:
            raise _OtherLayoutError(f"{file}:{line}: layers[{index}]: not JSON: {problem}") from None
        yield place, layer
        start, line, index = stop + 1, line + 1, index + 1


class _TwiceError(Exception):
    """An object has one key twice."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _TwiceError(f"the key {read.shown(key)} stands twice in one object")
            seen.add(key)
    return result


def _envelope(document: object, file: str) -> Mapping[str, Any]:
    """The outermost object of a plan, checked before the layers are."""
    place = Place(file)
    if not isinstance(document, dict) or "layers" not in document or "model" not in document:
        raise place.error('no plan: expected an object with "version", "model", "policy" and "layers"')
    version = document.get("version")
    if type(version) is not int or version != FORMAT_VERSION:
        raise place.key("version").unexpected(f"{FORMAT_VERSION}, which this policyquant reads", version)
    return read.fields(document, place, ("version", "generator", "model", "policy", "layers", "findings", "summary"))


def _plan(value: Mapping[str, Any], rows: tuple[Row, ...], file: str) -> Plan:
    read.text(value["generator"], Place(file, "generator"))
    findings = tuple(
        _finding(each, Place(file, f"findings[{index}]"))
        for index, each in enumerate(read.items(value["findings"], Place(file, "findings")))
    )
    _check_summary(value["summary"], summary_json(rows, findings), Place(file, "summary"))
    return Plan(
        _model(value["model"], Place(file, "model")), _policy(value["policy"], Place(file, "policy")), rows, findings
    )


def _model(value: object, place: Place) -> ModelInfo:
    found = read.fields(value, place, ("name", "architecture", "source", "layers", "parameters", "bytes"))
    return ModelInfo(
        read.text(found["name"], place.key("name")),
        read.text_or_null(found["architecture"], place.key("architecture")),
        read.text(found["source"], place.key("source")),
        read.size(found["layers"], place.key("layers")),
        read.size_or_null(found["parameters"], place.key("parameters")),
        read.size_or_null(found["bytes"], place.key("bytes")),
    )


def _policy(value: object, place: Place) -> PolicyInfo:
    found = read.fields(value, place, ("source", "sha256"))
    digest = read.text(found["sha256"], place.key("sha256"))
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise place.key("sha256").unexpected("64 hexadecimal digits", digest)
    return PolicyInfo(read.text(found["source"], place.key("source")), digest)


def _finding(value: object, place: Place) -> Finding:
    found = read.fields(value, place, Finding._fields)
    return Finding(
        read.text(found["code"], place.key("code")),
        read.choice(found["level"], place.key("level"), _LEVELS, "a level"),
        read.text(found["message"], place.key("message")),
        read.texts(found["layers"], place.key("layers")),
        read.texts(found["rules"], place.key("rules")),
    )


def _check_summary(found: object, counted: Mapping[str, Any], place: Place) -> None:
    """A summary that its own layers do not add up to is a file that somebody changed."""
    for key, value in read.fields(found, place, tuple(counted)).items():
        expected = counted[key]
        if isinstance(expected, dict):
            _check_summary(value, expected, place.key(key))
        elif type(value) is bool or value != expected:
            raise place.key(key).unexpected(f"{read.shown(expected)}, what the layers add up to", value)


def is_plan(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a plan rather than a policy or a model; False if it cannot be read."""
    file = os.fspath(path)
    try:
        if not Path(file).is_file():
            return False
        data = decompressed(read_file(file), file)
    except (SourceError, OSError, ValueError):
        return False
    start = data[:64].lstrip(b"\xef\xbb\xbf \t\r\n")
    return start.startswith(b"{") and all(key in data for key in (b'"generator"', b'"policy"', b'"layers"'))
