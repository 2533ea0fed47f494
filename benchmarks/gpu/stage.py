"""What every stage takes and gives: its result file, which is whole after every step, and its time."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Stage:
    """A stage at work.

    Args:
        path: where its result is written, at once and whole, whenever something is added.
        rehearse: whether there is no GPU, and sizes are tiny.
        end: of its time, by `time.monotonic`.
    """

    path: Path
    rehearse: bool
    end: float
    result: dict[str, Any] = field(default_factory=dict)

    @property
    def left(self) -> float:
        """Seconds until its time is over."""
        return self.end - time.monotonic()

    def write(self, **values: Any) -> None:
        """Add to the result, and write it."""
        self.result.update(values)
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.result, indent=1, default=str), encoding="utf-8")
        part.replace(self.path)

    def fail(self, reason: str) -> None:
        """The stage's status is that something is not as it should be."""
        self.write(status=f"failed: {reason}")


def main(run: Callable[[Stage], None]) -> None:
    """Run a stage as a process: `python -m benchmarks.gpu.<stage> RESULT [--rehearse] --seconds N`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("path", type=Path)
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--seconds", type=float, default=600)
    arguments = parser.parse_args()
    stage = Stage(arguments.path, arguments.rehearse, time.monotonic() + arguments.seconds)
    stage.write()
    run(stage)
    stage.write(status=stage.result.get("status", "passed"))
    sys.exit(0 if stage.result["status"] in ("passed", "not measured") else 1)
