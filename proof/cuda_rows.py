"""The rows of the table for the CUDA library: every instance of its kernels, on every architecture."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from proof.bound import Bound, bound, rates
from proof.case import Kernel as Expected
from proof.check import findings, too_busy
from proof.cuda_cases import CASES, NARROW, SPILLS, Case
from proof.cuda_compile import Kernel, compiled, version
from proof.sass import Code, parse

ARCHITECTURES: Final = (80, 89, 90, 100)
_WITH_FP8: Final = 89


def rows(
    sources: Sequence[str],
    architectures: Sequence[int],
    kernels_of: Callable[[str, int], dict[str, Kernel]] = compiled,
) -> Iterator[dict[str, Any]]:
    """What was found, for the report: an instance once for each case that launches it, or once without a case.

    Args:
        kernels_of: the kernels of a source and an architecture.

    Raises:
        policyquant.kernels.cuda.build.BuildError: nvcc is not found, or it fails.
    """
    for architecture in architectures:
        for source in sources:
            kernels = kernels_of(source, architecture)
            cases = [case for case in CASES if case.source == source]
            for case in cases:
                if case.kernel not in kernels:
                    missing = {"launch": f"there is no {case.kernel}"}
                    yield {**_row(source, case.kernel, architecture, case), "faults": missing}
            for name, kernel in kernels.items():
                code = parse(kernel.sass)
                for case in [each for each in cases if each.kernel == name] or [None]:
                    yield _result(source, name, kernel, code, architecture, case)


def _result(source: str, name: str, kernel: Kernel, code: Code, architecture: int, case: Case | None) -> dict[str, Any]:
    found = _findings(name, kernel, code, architecture)
    predicted = None
    if case is not None:
        try:
            predicted = _bound(case, code, architecture)
            found.update(too_busy(predicted))
        except ValueError as error:
            found["loops"] = str(error)
    waivers = {} if case is None else dict(case.waivers)
    if name in SPILLS:
        waivers["spills"] = SPILLS[name]
    reasons = {key: waivers.get(f"{key}@{architecture}") or waivers.get(key) for key in found}
    return {
        **_row(source, name, architecture, case),
        "registers": kernel.registers,
        "shared": kernel.shared,
        "stack": kernel.stack,
        "microseconds": None if predicted is None else {k: round(v, 3) for k, v in predicted.microseconds.items()},
        "limit": None if predicted is None else predicted.limit,
        "faults": {key: text for key, text in found.items() if reasons[key] is None},
        "waived": {key: f"{text}: {reasons[key]}" for key, text in found.items() if reasons[key] is not None},
    }


def _findings(name: str, kernel: Kernel, code: Code, architecture: int) -> dict[str, str]:
    loads, stores = NARROW.get(name.partition("<")[0], (0, 0))
    expected = Expected(bytes=0, narrow_loads=loads, narrow_stores=stores)
    found = findings(code, kernel.stack, expected, architecture, is_aligned(name))
    if name.startswith("encode_") and ", none, " not in name and architecture >= _WITH_FP8:
        encoders = [each for each in code.instructions() if each.opcode == "F2FP" and ".E" in each.name]
        if not encoders:
            found["encoding"] = "no F2FP to E4M3 or E5M2"
    return found


def is_aligned(name: str) -> bool:
    """Whether it is the instance of a kernel for rows of whole packs of 16 bytes."""
    return name.partition("<")[0] in NARROW and "true" in name


def _bound(case: Case, code: Code, architecture: int) -> Bound:
    launch = case.launch(int(rates(architecture)["multiprocessors"]))
    return bound(code, architecture, launch.threads // 32, launch.blocks, launch.trips, case.bytes, 0.0, "")


def _row(source: str, name: str, architecture: int, case: Case | None) -> dict[str, Any]:
    return {
        "family": source,
        "operator": "" if case is None else case.operator,
        "case": "",
        "kernel": name,
        "architecture": architecture,
        "nvcc": version(),
        "aligned": is_aligned(name),
        "faults": {},
        "waived": {},
    }
