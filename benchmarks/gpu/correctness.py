"""Stage: the tests of the kernels, `pytest -m gpu`, on the GPU; one file after another, so that none hides another."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu.stage import Stage, main

TESTS = Path("tests/kernels")
CLOSING = re.compile(r"\d+ (passed|failed|error|tests? collected)")
CONFIGURATION = Path(__file__).with_name("pytest.ini")


def run(stage: Stage) -> None:
    """Files in parallel would fight for the GPU's time; they run in turn, the smallest first."""
    files: dict[str, Any] = {}
    failed = []
    with_kernels = [path for path in TESTS.rglob("test_*.py") if "pytest.mark.gpu" in path.read_text(encoding="utf-8")]
    for path in sorted(with_kernels, key=lambda path: path.stat().st_size):
        if stage.left < 10:
            files[str(path)] = {"status": "not measured"}
            continue
        command = [sys.executable, "-m", "pytest", "-c", str(CONFIGURATION), "--rootdir", ".", "-m", "gpu", "-q"]
        if stage.rehearse:
            # Here the tests run anyway; whether they are found and start is what a rehearsal is for.
            command += ["--collect-only"]
        try:
            done = subprocess.run(
                [*command, str(path)], capture_output=True, text=True, timeout=stage.left - 5, check=False
            )
            output, code = done.stdout + done.stderr, done.returncode
        except subprocess.TimeoutExpired as error:
            output, code = f"{error.stdout!s}", -1
        passed = code == 0
        closing = [line for line in output.splitlines() if CLOSING.search(line)]
        files[str(path)] = {
            "status": "passed" if passed else "out of time" if code == -1 else "failed",
            "summary": closing[-1:],
            "output": "" if passed else output[-6000:],
        }
        if not passed:
            failed.append(path.name)
        print(f"{path.name}: {files[str(path)]['status']} {' '.join(closing[-1:])}", flush=True)
        stage.write(files=files)
    if failed:
        stage.fail(", ".join(failed))


if __name__ == "__main__":
    main(run)
