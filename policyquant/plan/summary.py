"""Totals of a plan."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from policyquant.findings import Finding
from policyquant.plan.rows import Row


@dataclass(frozen=True, slots=True)
class Total:
    """Layers, logical parameters and stored bytes of some rows; None where a shape is unknown."""

    layers: int
    parameters: int | None
    bytes_before: int | None
    bytes_after: int | None
    parameters_after: int | None
    """More than `parameters` where tied layers are stored apart."""

    @property
    def bits_before(self) -> float | None:
        """Stored bits per parameter as the model is."""
        return _bits(self.bytes_before, self.parameters)

    @property
    def bits_after(self) -> float | None:
        """Stored bits per parameter under the plan."""
        return _bits(self.bytes_after, self.parameters_after)


def _bits(size: int | None, parameters: int | None) -> float | None:
    return 8 * size / parameters if size is not None and parameters else None


def total(rows: Iterable[Row]) -> Total:
    """The totals of some rows."""
    rows = list(rows)
    return Total(
        sum(row.count for row in rows),
        _sum((row.parameters, row.count) for row in rows),
        _sum((row.bytes_before, row.count) for row in rows),
        _sum((row.bytes_after, row.count) for row in rows),
        _sum((row.parameters_after, row.count) for row in rows),
    )


def _sum(values: Iterable[tuple[int | None, int]]) -> int | None:
    result = 0
    for value, times in values:
        if value is None:
            return None
        result += value * times
    return result


def by_method(rows: Sequence[Row]) -> dict[str, Total]:
    """The totals of each method, the largest first."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.scheme.method, []).append(row)
    totals = {method: total(of_method) for method, of_method in groups.items()}
    return dict(sorted(totals.items(), key=lambda item: (-(item[1].parameters or 0), item[0])))


def summary_json(rows: Sequence[Row], findings: Sequence[Finding]) -> dict[str, Any]:
    """`summary` of `plan.schema.json`."""
    everything = total(rows)
    return {
        "layers": everything.layers,
        "parameters": everything.parameters,
        "bytes_before": everything.bytes_before,
        "bytes_after": everything.bytes_after,
        "bits_per_weight_before": everything.bits_before,
        "bits_per_weight_after": everything.bits_after,
        "methods": {
            method: {
                "layers": part.layers,
                "parameters": part.parameters,
                "bytes_before": part.bytes_before,
                "bytes_after": part.bytes_after,
            }
            for method, part in by_method(rows).items()
        },
        "kv_cache": sum(row.count for row in rows if row.scheme.kv_cache is not None),
        "errors": sum(finding.level == "error" for finding in findings),
        "warnings": sum(finding.level == "warning" for finding in findings),
        "notes": sum(finding.level == "note" for finding in findings),
    }
