"""Compiles the CUDA sources into one library, which runs under any torch from `library.TORCH_VERSION` on.

Needs nvcc, a C++ compiler that it accepts, and torch's headers, which come with torch; no GPU, and no torch for CUDA.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from policyquant.kernels.cuda import library

ARCHITECTURES: Final = ("80", "89", "90", "100")
"""Compute capabilities that code is made for; it also runs on later ones with the same first digits."""
USUAL_PLACE: Final = Path("/usr/local/cuda/bin/nvcc")


class BuildError(RuntimeError):
    """There is nothing to compile with, or the compiler failed."""


def build(architectures: Sequence[str] = ARCHITECTURES) -> Path:
    """Compile the library and put it where it is looked for. If it is there already, nothing is done.

    Args:
        architectures: compute capabilities without the dot; those that nvcc does not know are left out.

    Raises:
        BuildError: no nvcc is found, it knows none of the architectures, torch is too old, or nvcc fails.
    """
    target = library.path()
    if target.exists():
        return target
    nvcc = find_nvcc()
    known = [each for each in architectures if each in known_architectures(nvcc)]
    if not known:
        raise BuildError(f"{nvcc} compiles for none of {', '.join(architectures)}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        # Files are independent of each other, and so are the architectures of one, which nvcc would compile in turn.
        def of(source: Path) -> Path:
            return compiled(nvcc, source, Path(folder), known, "--threads=0")

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(of, library.sources()))
        partial = Path(folder, target.name)
        where = _torch().parent / "lib"
        _run([nvcc, "-shared", "-cudart", "static", *objects, f"-L{where}", "-ltorch_cpu", "-o", partial])
        partial.replace(target)
    return target


def compiled(nvcc: Path, source: Path, folder: Path, architectures: Sequence[str], *more: str) -> Path:
    """One source compiled for these architectures: an object file, or what the flags in `more` make of it.

    Raises:
        BuildError: torch is too old, or nvcc fails; what it said is in the message.
    """
    target = folder / f"{source.stem}.o"
    major, minor = map(int, library.TORCH_VERSION.split("."))
    version = f"-DTORCH_TARGET_VERSION=0x{major:02x}{minor:02x}000000000000"
    include = f"-I{_torch().parent / 'include'}"
    _run([nvcc, "-c", *library.FLAGS, version, include, *codes(architectures), *more, source, "-o", target])
    return target


def codes(architectures: Sequence[str]) -> list[str]:
    """What nvcc is told to make: code that runs, and no PTX, which an older driver would refuse."""
    return [f"-gencode=arch=compute_{each},code=sm_{each}" for each in architectures]


def find_nvcc() -> Path:
    """nvcc of $CUDA_HOME, else of the path, else of the usual place.

    Raises:
        BuildError: there is none.
    """
    for candidate in _candidates():
        if candidate.exists():
            return candidate
    raise BuildError("nvcc is not found: install the CUDA toolkit, and set CUDA_HOME if it is in no usual place")


def _candidates() -> Iterator[Path]:
    home = os.environ.get("CUDA_HOME")
    if home:
        yield Path(home, "bin", "nvcc")
    found = shutil.which("nvcc")
    if found is not None:
        yield Path(found)
    yield USUAL_PLACE


def known_architectures(nvcc: Path) -> frozenset[str]:
    """The compute capabilities, without the dot, that this nvcc makes code for."""
    return frozenset(re.findall(r"^sm_(\d+)$", _run([nvcc, "--list-gpu-code"]), re.MULTILINE))


def _torch() -> Path:
    """torch's `__init__.py`, if that torch has the headers that are needed."""
    import torch

    needed = tuple(map(int, library.TORCH_VERSION.split(".")))
    found = tuple(map(int, re.findall(r"\d+", torch.__version__)[:2]))
    if found < needed:
        raise BuildError(f"it needs torch {library.TORCH_VERSION} or later, found {torch.__version__}")
    return Path(torch.__file__)


def _run(command: Sequence[str | Path]) -> str:
    """What the command prints.

    Raises:
        BuildError: it fails.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = "\n".join((done.stderr or done.stdout).strip().splitlines()[:20])
        raise BuildError(f"{Path(command[0]).name} failed with status {done.returncode}\n{said}")
    return done.stdout
