"""Stage: what the machine is, what is on it, and how fast it copies and multiplies."""

from __future__ import annotations

import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from benchmarks.gpu.measure import copy_bandwidth, seconds_of
from benchmarks.gpu.stage import Stage, main

PACKAGES = ("torch", "triton", "numpy", "pytest", "hypothesis", "safetensors", "pyyaml", "rich", "transformers")


def run(stage: Stage) -> None:
    """Versions first; a machine without a GPU fails here, before anything takes time."""
    stage.write(python=platform.python_version(), packages={name: _version(name) for name in PACKAGES})
    nvcc = shutil.which("nvcc") or str(Path("/usr/local/cuda/bin/nvcc"))
    if Path(nvcc).exists():
        said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False).stdout
        stage.write(nvcc=said.splitlines()[-1:])
    if not torch.cuda.is_available():
        stage.write(gpu=None)
        if not stage.rehearse:
            stage.fail("torch sees no GPU")
        return
    properties = torch.cuda.get_device_properties(0)
    stage.write(
        gpu=properties.name,
        capability=f"{properties.major}.{properties.minor}",
        multiprocessors=properties.multi_processor_count,
        memory=properties.total_memory,
        cuda=torch.version.cuda,
        copy_bytes_per_second=copy_bandwidth("cuda"),
    )
    sides = [torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    stage.write(bf16_flop_per_second=2 * 8192**3 / seconds_of(lambda pair: pair[0] @ pair[1], [sides], "cuda"))


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


if __name__ == "__main__":
    main(run)
