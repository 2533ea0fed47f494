"""`config.json`: read widely, since it is written by many tools, and what readers would understand differently is
reported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from policyquant.errors import SourceError
from policyquant.findings import Finding
from policyquant.inventory.json_file import DuplicateKey, parse_json


class Config(NamedTuple):
    """Values of a `config.json` and what there is to say about them."""

    values: Mapping[str, object]
    findings: tuple[Finding, ...]


QUANTIZATION_KEYS = ("quantization_config", "compression_config", "quantization")
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
    findings = [
        Finding("PQ409", "warning", f"{key.location}: the key {key.key!r} stands twice; the last one holds")
        for key in duplicates
    ]
    findings += _check_quantization(values, file)
    dtype, torch_dtype = values.get("dtype"), values.get("torch_dtype")
    if dtype is not None and torch_dtype is not None and dtype != torch_dtype:
        findings.append(
            Finding(
                "PQ432",
                "note",
                f"{file}: dtype is {dtype!r} and torch_dtype is {torch_dtype!r}; the tensors' own dtypes decide",
            )
        )
    return Config(values, tuple(findings))


def _check_quantization(config: Mapping[str, object], file: str) -> list[Finding]:
    declared: dict[str, Mapping[str, object]] = {}
    for path, holder in (("", config), ("text_config.", config.get("text_config"))):
        if not isinstance(holder, Mapping):
            continue
        for key in QUANTIZATION_KEYS:
            value = holder.get(key)
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
    """What a config says about how its model is quantized; empty if it says nothing.

    ModelOpt's own files (`hf_quant_config.json`) say it at their top level or under `quantization`.
    """
    for holder in (config, config.get("text_config")):
        if isinstance(holder, Mapping):
            for key in QUANTIZATION_KEYS:
                value = holder.get(key)
                if isinstance(value, Mapping) and value:
                    return value
    return config if "quant_algo" in config else {}


def _named(value: object) -> str:
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return "a string"
    return "null" if value is None else f"{value!r}"[:40]
