"""The CUDA library as it runs on a CPU: the same sources, which the host's compiler compiles with `cuda_runtime.h`.

`force("cuda")` then runs the kernels on CPU tensors, as it runs them on a GPU's.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import torch

from policyquant.kernels.cuda import library

FLAGS: Final = ("-x", "c++", "-std=c++17", "-O1", "-ffp-contract=off", "-fPIC", "-fvisibility=hidden", "-w")
CACHE: Final = Path(__file__).parents[3] / "build" / "cuda_on_cpu"


def built(sources: Path = library.SOURCES) -> Path:
    """The library of the sources in this folder, compiled unless it was before.

    Raises:
        subprocess.CalledProcessError: the compiler refuses them; what it says is printed.
    """
    found = hashlib.sha256(" ".join((*FLAGS, torch.__version__)).encode())
    for path in (*sorted(sources.glob("*.cu*")), Path(__file__).with_name("cuda_runtime.h")):
        found.update(path.name.encode() + b"\0" + path.read_bytes())
    target = CACHE / f"{found.hexdigest()[:16]}.so"
    CACHE.mkdir(parents=True, exist_ok=True)
    # Several processes of one run of the tests want it at once.
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            _compile(sorted(sources.glob("*.cu")), target)
    return target


def _compile(sources: list[Path], target: Path) -> None:
    compiler = os.environ.get("CXX") or shutil.which("g++") or "c++"
    root = Path(torch.__file__).parent
    major, minor = map(int, library.TORCH_VERSION.split("."))
    options = [
        *FLAGS,
        "-DPOLICYQUANT_DEVICE=CPU",
        f"-DTORCH_TARGET_VERSION=0x{major:02x}{minor:02x}000000000000",
        f"-I{Path(__file__).parent}",
        f"-I{root / 'include'}",
    ]
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        objects = [Path(folder, f"{source.stem}.o") for source in sources]

        def compiled(source: Path, into: Path) -> None:
            subprocess.run([compiler, *options, "-c", source, "-o", into], check=True)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(compiled, sources, objects))
        partial = Path(folder, target.name)
        subprocess.run([compiler, "-shared", *objects, f"-L{root / 'lib'}", "-ltorch_cpu", "-o", partial], check=True)
        partial.replace(target)
