"""`python -m proof` in a process of its own, in which kernels are not interpreted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def proven(tmp_path: Path, *arguments: str) -> list[dict[str, Any]]:
    """The rows of the report; what is not as expected fails the test, with the table."""
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "proof", *arguments, "--faults", "--json", str(report)]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows: list[dict[str, Any]] = json.loads(report.read_text(encoding="utf-8"))
    return rows
