"""Stage: nvcc builds the CUDA library while Triton's kernels are compiled, each configuration that the table runs.

Kernels are compiled by being called once, in as many processes as there are cores: what is compiled then is just what
runs later. A library that does not build is reported, and the rest goes on without it. It is built for the GPU at hand
alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any, Final

from benchmarks.gpu.stage import Stage, main

BUILD: Final = """
import torch
from policyquant.kernels.cuda.build import build
print(build(["%d%d" % torch.cuda.get_device_capability()]))
"""


def run(stage: Stage) -> None:
    """Both at once."""
    directory = stage.path.parent
    processes = min(16, os.cpu_count() or 1)
    logs = {name: (directory / f"{name}.log").open("w", encoding="utf-8") for name in ("nvcc", "triton")}
    building: Any = None
    if not stage.rehearse:
        building = subprocess.Popen([sys.executable, "-c", BUILD], stdout=logs["nvcc"], stderr=subprocess.STDOUT)
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
        try:
            code = building.wait(timeout=max(1, stage.left - 2))
        except subprocess.TimeoutExpired:
            building.kill()
            code = None
        said = {0: "built", None: "out of time"}.get(code, "failed")
        stage.write(cuda=said, cuda_seconds=time.monotonic() - start)
        if code != 0:
            stage.fail(f"the CUDA library was not built; {directory / 'nvcc.log'} says why")
    if failed:
        stage.fail(f"{failed} of {processes} processes met a kernel that does not compile; triton.log says which")
    for log in logs.values():
        log.close()


if __name__ == "__main__":
    main(run)
