"""Stage: compute-sanitizer watches some rows for memory errors, by Triton's kernels and by the CUDA library's."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu.stage import Stage, main
from policyquant.kernels.cuda import library


def run(stage: Stage) -> None:
    """One process for all rows; Triton's kernels are compiled already."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if stage.rehearse or not Path(tool).exists():
        stage.write(status="not measured", reason="a rehearsal" if stage.rehearse else "compute-sanitizer is not here")
        return
    watched = [tool, "--tool", "memcheck", "--error-exitcode", "9", sys.executable, "-m", "benchmarks.gpu.warm", "0/8"]
    for implementation in ("cuda", "triton"):
        if implementation == "cuda" and not library.path().exists():
            stage.write(cuda="not measured")
            continue
        command = [*watched, "--by", implementation]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=stage.left - 3, check=False)
        except subprocess.TimeoutExpired:
            stage.write(status="not measured", reason=f"out of time at {implementation}")
            return
        said = (done.stdout + done.stderr)[-4000:]
        stage.write(**{implementation: {"exit status": done.returncode, "output": said}})
        if done.returncode != 0:
            stage.fail(f"{implementation}: exit status {done.returncode}")


if __name__ == "__main__":
    main(run)
