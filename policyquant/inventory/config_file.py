"""`config.json`: read widely, since it is written by many tools, and what readers would understand differently is
reported. ModelOpt's `hf_quant_config.json` beside it says what other tools write into it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from policyquant.errors import SourceError
from policyquant.findings import Finding
from policyquant.inventory.echo import quoted, value_shown
from policyquant.inventory.json_file import DuplicateKey, parse_json
from policyquant.inventory.spans import listed


class Config(NamedTuple):
    """Values of a `config.json` and what there is to say about them."""

    values: Mapping[str, object]
    findings: tuple[Finding, ...]


TEXT_KEYS: Final = ("text_config", "llm_config", "language_config")
"""Where a config that is divided by modality describes its text model."""

QUANTIZATION_KEYS: Final = ("quantization_config", "compression_config", "quantization")
"""Where a config may declare how its model is quantized; the second is compressed-tensors' older spelling, the third
MLX's."""


def parse_config(data: bytes, file: str) -> Config:
    """Check and take apart a `config.json`.

    Raises:
        SourceError: it is no JSON object, or what it says about quantization is none.
    """
    duplicates: list[DuplicateKey] = []
    values = parse_json(data, file, duplicates=duplicates)
    if not isinstance(values, dict):
        raise SourceError(f"{file}: expected a JSON object, found {_named(values)}")
    findings = [*_twice(duplicates), *_check_quantization(values, file)]
    dtype, torch_dtype = values.get("dtype"), values.get("torch_dtype")
    if dtype is not None and torch_dtype is not None and dtype != torch_dtype:
        findings.append(
            Finding(
                "PQ432",
                "note",
                f"{file}: dtype is {value_shown(dtype)} and torch_dtype is {value_shown(torch_dtype)};"
                " the tensors' own dtypes decide",
            )
        )
    return Config(values, tuple(findings))


def _twice(duplicates: Sequence[DuplicateKey]) -> Iterator[Finding]:
    """One finding, however many keys stand twice."""
    if duplicates:
        first, *others = duplicates
        also = f" (so do {listed([f'{quoted(each.key)} at {each.location}' for each in others])})" if others else ""
        message = f"{first.location}: the key {quoted(first.key)} stands twice{also}; the last one holds"
        yield Finding("PQ409", "warning", message)


def _check_quantization(config: Mapping[str, object], file: str) -> list[Finding]:
    declared: dict[str, Mapping[str, object]] = {}
    for path, level in _levels(config):
        for key in QUANTIZATION_KEYS:
            value = level.get(key)
            if value is None:
                continue
            if not isinstance(value, Mapping):
                raise SourceError(f"{file}: {path}{key}: expected an object, found {_named(value)}")
            declared[f"{path}{key}"] = value
    findings = [
        Finding("PQ433", "note", f"{file}: {path} is empty; read as not quantized")
        for path, value in declared.items()
        if not value
    ]
    filled = [(path, value) for path, value in declared.items() if value]
    for path, value in filled[1:]:
        if value != filled[0][1]:
            findings.append(
                Finding("PQ431", "warning", f"{file}: {filled[0][0]} and {path} differ; the first of them is read")
            )
    return findings


def declared_quantization(config: Mapping[str, object]) -> Mapping[str, object]:
    """What a config says about how its model is quantized; empty if it says nothing."""
    for level in levels(config):
        for key in QUANTIZATION_KEYS:
            value = level.get(key)
            if isinstance(value, Mapping) and value:
                return value
    return {}


def parse_quantization_file(data: bytes, file: str) -> Mapping[str, object]:
    """What a `hf_quant_config.json` says, as it would stand in a config's `quantization_config`.

    Raises:
        SourceError: it is no JSON object, or what it says about quantization is none.
    """
    values = parse_json(data, file)
    if not isinstance(values, dict):
        raise SourceError(f"{file}: expected a JSON object, found {_named(values)}")
    said = values.get("quantization", values)
    if not isinstance(said, dict):
        raise SourceError(f"{file}: quantization: expected an object, found {_named(said)}")
    return said


def levels(config: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    """A config and, where it is divided by modality, its text model's part: what holds for all may stand in either."""
    return (level for _, level in _levels(config))


def _levels(config: Mapping[str, object]) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Each level with what stands before its keys."""
    yield "", config
    for key in TEXT_KEYS:
        nested = config.get(key)
        if isinstance(nested, Mapping):
            yield f"{key}.", nested


def _named(value: object) -> str:
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return "a string"
    return "null" if value is None else value_shown(value)
