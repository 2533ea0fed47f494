"""The table of `inspect`: rows of a plan as text, layers that look alike in one line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final, Protocol

from policyquant.cli.sizes_text import count_text, shape_text
from policyquant.cli.tables import Column, Table
from policyquant.inventory.kinds import Kind
from policyquant.inventory.layers import Indices, NameForm
from policyquant.inventory.spans import counted_spans
from policyquant.plan.decide import DecidedBy
from policyquant.plan.rows import Row, RuleRef
from policyquant.policy.scheme import NONE, Quantization

_SHORT_DTYPES: Final[Mapping[str, str]] = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8_e5m2",
    "float8_e8m0fnu": "fp8_e8m0",
    "float4_e2m1fn": "fp4",
}
"""As a policy writes them: a column is read faster if it is narrow."""

_STORED_DTYPES: Final[Mapping[str, str]] = {
    "BF16": "bf16",
    "F16": "fp16",
    "F32": "fp32",
    "F8_E4M3": "fp8",
    "F8_E5M2": "fp8_e5m2",
    "F8_E8M0": "fp8_e8m0",
    "I8": "int8",
}
"""The same for what safetensors call them."""

_QUIET_KINDS: Final[tuple[Kind, ...]] = ("norm", "activation", "attention", "conv", "other")
"""No broad rule quantizes these; unless something is set for them, a line for each tells nothing."""

_COLUMNS: Final = (
    Column("name", fold=True, code=True),
    Column("layers", right=True),
    Column("kind", style="dim"),
    Column("shape", style="dim"),
    Column("method", style="cyan"),
    Column("weight", fold=True),
    Column("input", fold=True),
    Column("output", fold=True),
    Column("KV cache", fold=True),
    Column("rule", fold=True, code=True),
    Column("at", fold=True, style="dim"),
)


def quantization_text(quantization: Quantization | str | None) -> str:
    """`fp8 per channel`; a plain dtype by its short name; empty for None."""
    if quantization is None:
        return ""
    if isinstance(quantization, str):
        return _SHORT_DTYPES.get(quantization, quantization)
    text = str(quantization)
    dtype = quantization.dtype
    text = _SHORT_DTYPES.get(dtype, dtype) + text.removeprefix(dtype)
    if quantization.scale_dtype not in ("float32", "bfloat16"):
        text += f", {_SHORT_DTYPES.get(quantization.scale_dtype, quantization.scale_dtype)} scales"
    if quantization.scale is not None:
        text += f", scale {quantization.scale:g}"
    if quantization.scale_ub is not None:
        text += f", scale at most {quantization.scale_ub:g}"
    return text


def weight_text(row: Row) -> str:
    """What the weight will be stored as."""
    if row.scheme.weight is not None:
        return quantization_text(row.scheme.weight)
    if row.scheme.method == "none" and row.stored is not None:
        return as_stored_text(row.stored)
    if row.scheme.method != "none" or row.dtype is None:
        return ""
    return dtype_text(row.dtype)


def dtype_text(dtype: str) -> str:
    """A stored dtype as a policy would write it."""
    return _STORED_DTYPES.get(dtype, dtype)


def as_stored_text(stored: str) -> str:
    """`as stored: fp8, block 128x128`, from a stored scheme with its method before it."""
    return f"as stored: {stored_text(stored.partition(': ')[2] or stored)}"


def stored_text(description: str) -> str:
    """How something is stored, with dtypes as a policy would write them."""
    return re.sub(r"\b(?:BF16|F16|F32|F8_E4M3|F8_E5M2|F8_E8M0|I8)\b", lambda found: dtype_text(found[0]), description)


class Decided(Protocol):
    """Whatever carries a decision: a row, or one side of a difference."""

    @property
    def decided_by(self) -> DecidedBy: ...

    @property
    def rule(self) -> RuleRef | None: ...

    @property
    def refined_by(self) -> tuple[RuleRef, ...]: ...


class RulePlaces:
    """Where rules stand, by the shortest name that tells their files apart."""

    def __init__(self, rows: Iterable[Decided]) -> None:
        files = {rule.file for row in rows for rule in (row.rule, *row.refined_by) if rule is not None}
        names = [PurePath(file).name for file in files]
        self._names = {file: name if names.count(name) == 1 else file for file, name in zip(files, names, strict=True)}

    def text(self, rule: RuleRef) -> str:
        """`policy.yaml:3`."""
        name = self._names.get(rule.file, rule.file)
        return name if rule.line is None else f"{name}:{rule.line}"


def rule_texts(row: Decided, places: RulePlaces) -> tuple[str, str]:
    """What decided, and where that stands."""
    rules = [rule for rule in (row.rule, *row.refined_by) if rule is not None]
    patterns = " + ".join(rule.pattern for rule in rules)
    where = " + ".join(dict.fromkeys(places.text(rule) for rule in rules))
    if row.decided_by == "rule":
        return patterns, where
    word = {"default": "default", "tie": "tied", "protection": "protected", "nothing": ""}[row.decided_by]
    return " + ".join(filter(None, (word, patterns))), where


@dataclass(slots=True)
class _Line:
    """Rows that look alike, and so are one line (or more, if their names do not fold into one)."""

    form: NameForm
    cells: tuple[str, ...]
    indices: list[Indices]


def layer_table(rows: Sequence[Row], *, each: bool = False) -> Table:
    """Rows as a table. Layers with one name template that look alike share a line, unless `each` has its own."""
    places = RulePlaces(rows)
    lines: dict[tuple[NameForm, tuple[str, ...]], _Line] = {}
    for row in rows:
        cells = (
            row.kind,
            shape_text(row.shape),
            row.scheme.method,
            weight_text(row),
            quantization_text(row.scheme.input),
            quantization_text(row.scheme.output),
            quantization_text(row.scheme.kv_cache),
            *rule_texts(row, places),
        )
        line = lines.setdefault((row.form, cells), _Line(row.form, cells, []))
        line.indices.extend(row.indices)
    if each:
        # No count: each line is one layer, and one that repeats nowhere else looks like any other.
        body = [(name, "", *line.cells) for line in lines.values() for name in line.form.fill_all(sorted(line.indices))]
    else:
        body = [
            (name, f"{count:,}", *line.cells)
            for line in lines.values()
            for name, count in counted_spans(line.form, line.indices)
        ]
    return Table(_COLUMNS, body).without_empty_columns()


def is_quiet(row: Row) -> bool:
    """Whether a row is of a kind that has nothing to quantize by itself, and nothing is set for it."""
    return row.kind in _QUIET_KINDS and row.scheme == NONE and row.stored is None


def quiet_text(rows: Sequence[Row]) -> str:
    """What is said of rows that are not listed: `65 norm, 32 activation`."""
    counts = {kind: sum(row.count for row in rows if row.kind == kind) for kind in _QUIET_KINDS}
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in counts.items() if count)
    return f"{count_text(sum(counts.values()), 'layer')} with nothing set: {kinds}"
