"""Stage: nvcc builds the CUDA library while Triton's kernels are compiled, each configuration that the table runs.

Kernels are compiled by being called once, in as many processes as there are cores: what is compiled then is just what
runs later. A library that does not build is reported, and the rest goes on without it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib.util import find_spec
from typing import Any

from benchmarks.gpu.stage import Stage, main


def run(stage: Stage) -> None:
    """Both at once."""
    directory = stage.path.parent
    processes = min(16, os.cpu_count() or 1)
    builder = "import sys; from policyquant.kernels.cuda.build import build; print(build())"
    logs = {name: (directory / f"{name}.log").open("w", encoding="utf-8") for name in ("nvcc", "triton")}
    building: Any = None
    if find_spec("policyquant.kernels.cuda") is not None:
        building = subprocess.Popen([sys.executable, "-c", builder], stdout=logs["nvcc"], stderr=subprocess.STDOUT)
    start = time.monotonic()
    command = [sys.executable, "-m", "benchmarks.gpu.warm", *(["--rehearse"] if stage.rehearse else [])]
    workers = [
        subprocess.Popen([*command, f"{part}/{processes}"], stdout=logs["triton"], stderr=subprocess.STDOUT)
        for part in range(processes)
    ]
    failed = sum(worker.wait(timeout=max(1, stage.left - 5)) != 0 for worker in workers)
    stage.write(triton_seconds=time.monotonic() - start, triton_processes=processes, triton_failed=failed)
    if building is None:
        stage.write(cuda="not measured")
    else:
        code = building.wait(timeout=max(1, stage.left - 2))
        stage.write(cuda="built" if code == 0 else "failed", cuda_seconds=time.monotonic() - start)
        if code != 0:
            stage.fail(f"the CUDA library was not built; {directory / 'nvcc.log'} says why")
    if failed:
        stage.fail(f"{failed} of {processes} processes met a kernel that does not compile; triton.log says which")
    for log in logs.values():
        log.close()


if __name__ == "__main__":
    main(run)
