"""What implementations of operators ask of a machine: its GPU, and which optional packages are installed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Final

import torch

from policyquant.kernels.cuda import library

CUDA_LIBRARY: Final = "policyquant's CUDA library"
"""Stands among packages where the library of `kernels/cuda` is built."""

OPTIONAL_PACKAGES: Final = ("triton", "deep_gemm", "flashinfer")
"""What some implementation needs beside torch, by the names that are imported."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A device as implementations see it. Made by hand it is a machine that is not here."""

    device: str
    """ "cpu" or "cuda"."""
    capability: tuple[int, int] | None = None
    """The compute capability of a GPU."""
    multiprocessors: int = 0
    packages: frozenset[str] = frozenset()
    """Which of `OPTIONAL_PACKAGES` are installed, and `CUDA_LIBRARY` if it is built."""
    on_cpu: frozenset[str] = frozenset()
    """Which of the packages run their kernels on a CPU here: Triton in its interpreter."""
    rocm: bool = False
    """Whether the GPU is AMD's, which torch calls "cuda" too."""


@cache
def machine(device: str = "cpu", index: int = 0) -> Machine:
    """The machine at hand, as seen from one of its devices."""
    if device != "cuda":
        return Machine("cpu", packages=installed(), on_cpu=frozenset(_running_on_cpu()))
    properties = torch.cuda.get_device_properties(index)
    return Machine(
        "cuda",
        (properties.major, properties.minor),
        properties.multi_processor_count,
        installed(),
        rocm=torch.version.hip is not None,
    )


def _running_on_cpu() -> Iterator[str]:
    # Triton reads it when a kernel is defined.
    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        yield "triton"
    if library.runs_on_cpu():
        yield CUDA_LIBRARY


@cache
def installed() -> frozenset[str]:
    """The optional packages that are here; none is imported."""
    packages = {package for package in OPTIONAL_PACKAGES if find_spec(package) is not None}
    return frozenset(packages | {CUDA_LIBRARY} if library.path().exists() else packages)


def dotted(capability: tuple[int, int]) -> str:
    """ "9.0" of (9, 0)."""
    return ".".join(map(str, capability))
