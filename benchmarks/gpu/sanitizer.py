"""Stage: compute-sanitizer watches every row's smallest shape for memory errors."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu.stage import Stage, main


def run(stage: Stage) -> None:
    """One process for all rows; kernels are compiled already."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if stage.rehearse or not Path(tool).exists():
        stage.write(status="not measured", reason="a rehearsal" if stage.rehearse else "compute-sanitizer is not here")
        return
    command = [tool, "--tool", "memcheck", "--error-exitcode", "9", sys.executable, "-m", "benchmarks.gpu.warm", "0/8"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=stage.left - 3, check=False)
    except subprocess.TimeoutExpired:
        stage.write(status="not measured", reason="out of time")
        return
    stage.write(output=(done.stdout + done.stderr)[-4000:])
    if done.returncode != 0:
        stage.fail(f"exit status {done.returncode}")


if __name__ == "__main__":
    main(run)
