"""The rows of the table: every kernel that a case launches, on every architecture, by the Triton of this process."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from math import prod
from typing import Any

import triton

from policyquant.kernels.triton.launch import Launch
from proof import cases
from proof.bound import Bound, bound, is_matrix
from proof.case import Amount, Case, Kernel
from proof.check import findings, too_busy
from proof.compile import Specialization, compiled, launches, specialize
from proof.sass import Code, parse


@dataclass(frozen=True, slots=True)
class Row:
    """A kernel to compile.

    Args:
        family: the stem of the table.
        expected: None if the case does not say what is expected of it.
    """

    family: str
    case: Case
    architecture: int
    launch: Launch
    what: Specialization
    expected: Kernel | None

    @property
    def kernel(self) -> str:
        """The name of the kernel's function."""
        return str(self.what.kernel.__name__)


def tables() -> list[str]:
    """The families that have a table."""
    return sorted(each.name for each in pkgutil.iter_modules(cases.__path__))


def rows(families: Sequence[str], quick: bool, architectures: Sequence[int]) -> Iterator[Row | dict[str, Any]]:
    """What is to be compiled; a finished result, with its fault, instead of a case that launches something else."""
    for family in families:
        for case in import_module(f"proof.cases.{family}").CASES:
            if case.quick or not quick:
                for architecture in case.architectures:
                    if architecture in architectures:
                        yield from _of_case(family, case, architecture)


def _of_case(family: str, case: Case, architecture: int) -> Iterator[Row | dict[str, Any]]:
    try:
        recorded = launches(case, architecture)
    except Exception as error:
        yield _result(family, case, architecture, "", faults={"launch": f"{type(error).__name__}: {error}"})
        return
    names = {launch.kernel.__name__ for launch in recorded}
    for name in sorted(name for name, kernel in case.kernels.items() if name not in names and not kernel.optional):
        fault = f"is not launched; launched are {', '.join(sorted(names)) or 'none'}"
        yield _result(family, case, architecture, name, faults={"launch": fault})
    for launch in recorded:
        what = specialize(launch, architecture)
        yield Row(family, case, architecture, launch, what, case.kernels.get(launch.kernel.__name__))


def result(row: Row) -> dict[str, Any]:
    """What was found of a row, for the report."""
    empty = _result(row.family, row.case, row.architecture, row.kernel)
    if row.expected is None:
        return {**empty, "faults": {"launch": "is launched, and the case does not say what is expected of it"}}
    try:
        binary = compiled(row.what)
    except Exception as error:
        return {**empty, "faults": {"compile": _innermost(error)}}
    code = parse(binary.sass)
    promotion = row.expected.promotion
    kernel = replace(row.expected, promotion=promotion(row.launch) if callable(promotion) else promotion)
    found = findings(code, binary.stack, kernel, row.architecture, row.case.aligned)
    if row.what.aligned != row.case.aligned and row.case.aligned:
        missing = sorted(name for name, kind in row.what.signature.items() if kind.startswith("*"))
        found["aligned"] = f"not all known to be divisible by 16: {', '.join(set(missing) - row.what.divisible)}"
    try:
        predicted = _bound(row, row.expected, code)
        if row.case.aligned:
            found.update(too_busy(predicted))
    except ValueError as error:
        predicted = None
        found["loops"] = str(error)
    waivers = {key: _waiver(row.expected, key, row.architecture) for key in found}
    return {
        **empty,
        "registers": binary.registers,
        "shared": binary.shared,
        "stack": binary.stack,
        "matrix": sorted({each.name for each in code.instructions() if is_matrix(each)}),
        "microseconds": None if predicted is None else {k: round(v, 3) for k, v in predicted.microseconds.items()},
        "limit": None if predicted is None else predicted.limit,
        "divisible": sorted(row.what.divisible),
        "ptxas": binary.ptxas,
        "seconds": round(binary.seconds, 2),
        "faults": {key: text for key, text in found.items() if waivers[key] is None},
        "waived": {key: f"{text}: {waivers[key]}" for key, text in found.items() if waivers[key] is not None},
    }


def _innermost(error: BaseException) -> str:
    """Triton tells where a function was called in one error, and what is wrong in it in its cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {str(error)[-500:]}"


def _waiver(kernel: Kernel, key: str, architecture: int) -> str | None:
    return kernel.waivers.get(f"{key}@{architecture}") or kernel.waivers.get(key)


def _bound(row: Row, expected: Kernel, code: Code) -> Bound:
    trips = expected.loops(row.launch) if callable(expected.loops) else expected.loops
    return bound(
        code,
        row.architecture,
        row.launch.num_warps,
        prod(row.launch.grid),
        trips,
        _amount(expected.bytes, row.launch),
        _amount(expected.flops, row.launch),
        expected.matrix or "",
    )


def _amount(amount: Amount, launch: Launch) -> float:
    return amount(launch) if callable(amount) else amount


def _result(family: str, case: Case, architecture: int, kernel: str, **found: Any) -> dict[str, Any]:
    return {
        "family": family,
        "operator": case.operator,
        "case": case.name,
        "kernel": kernel,
        "architecture": architecture,
        "triton": triton.__version__,
        "aligned": case.aligned,
        "faults": {},
        "waived": {},
        **found,
    }
