"""The library that `build` makes of the CUDA sources: where it is kept, and its operators.

It is asked for by name, `policyquant.kernels.cuda.library:static_scaled_fp8_quant`: an operator of the library takes
what the `.out` overload of the operator of that name takes.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any, Final

from policyquant.kernels.cache import cache_directory

NAME: Final = "policyquant_cuda"
SOURCES: Final = Path(__file__).parent
TORCH_VERSION: Final = "2.11"
"""The oldest torch whose stable ABI the library is built for; newer ones keep it."""
FLAGS: Final = ("-std=c++17", "-O3", "-fmad=false", "-Xcompiler", "-fPIC", "-Xcompiler", "-fvisibility=hidden")
"""Products and sums are fused where the sources say so and nowhere else, so that a GPU rounds as a CPU does that runs
the same sources."""


def sources() -> list[Path]:
    """The files that are compiled, one after the other."""
    return sorted(SOURCES.glob("*.cu"))


@cache
def fingerprint() -> str:
    """Of the sources and of how they are compiled: another library has another one."""
    found = hashlib.sha256(" ".join((*FLAGS, TORCH_VERSION)).encode())
    for path in sorted((*SOURCES.glob("*.cu"), *SOURCES.glob("*.cuh"))):
        found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]


_on_cpu: list[Path] = []


def use_on_cpu(path: Path) -> None:
    """From now on this library, which runs its operators on CPU tensors, stands for the one that is built.

    Call it before anything asks what the machine has.
    """
    _on_cpu[:] = [path]


def runs_on_cpu() -> bool:
    """Whether the library is one that runs on a CPU."""
    return bool(_on_cpu)


def path() -> Path:
    """Where the library of these sources is once it is built."""
    if _on_cpu:
        return _on_cpu[0]
    return cache_directory() / "cuda" / f"{NAME}-{fingerprint()}.so"


@cache
def load() -> Any:
    """The operators of the library, which is loaded into this process once.

    Raises:
        OSError: it is not built, or this torch is too old for it.
    """
    import torch

    if not path().exists():
        raise FileNotFoundError(f"{path()}: not built (policyquant kernels build)")
    operators: Any = torch.ops  # without types there
    operators.load_library(str(path()))
    return getattr(operators, NAME)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(load(), name).default
