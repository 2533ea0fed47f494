"""`python -m benchmarks.gpu`: run the stages one after another and print what each found.

Exit status: 0 if all that was run is as it should be, 1 if something is not, 2 for a stage that does not exist.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Stage:
    """A process of its own, `python -m benchmarks.gpu.<name>`, that writes `<name>.json`."""

    name: str
    seconds: int
    """What it may take at most."""


STAGES: Final = (
    Stage("environment", 30),
    Stage("compilation", 100),
    Stage("correctness", 150),
    Stage("speed", 120),
    Stage("end_to_end", 60),
    Stage("sanitizer", 45),
)
"""In order of value; a stage for which no time is left is not run."""
IN_ALL: Final = 480


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stages asked for."""
    parser = argparse.ArgumentParser(prog="benchmarks/gpu_check.sh", description=__doc__)
    parser.add_argument("--only", metavar="STAGE", action="append", help=", ".join(stage.name for stage in STAGES))
    parser.add_argument(
        "--rehearse", action="store_true", help="without a GPU: interpreted, tiny sizes, no bars judged"
    )
    parser.add_argument("--seconds", type=int, default=IN_ALL, help=f"for all stages; {IN_ALL} unless given")
    arguments = parser.parse_args(argv)
    unknown = sorted(set(arguments.only or ()) - {stage.name for stage in STAGES})
    if unknown:
        parser.error(f"no stage {unknown[0]!r}; there are {', '.join(stage.name for stage in STAGES)}")
    directory = Path(os.environ["OUT"])
    end = time.monotonic() + arguments.seconds
    results = {}
    for stage in STAGES:
        if arguments.only and stage.name not in arguments.only:
            continue
        results[stage.name] = _run(stage, directory, arguments.rehearse, end - time.monotonic())
        print(f"{stage.name}: {results[stage.name]['status']}", flush=True)
        (directory / "summary.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    bad = [name for name, result in results.items() if result["status"] not in ("passed", "not measured")]
    print(f"failed: {', '.join(bad)}" if bad else "nothing failed")
    return 1 if bad else 0


def _run(stage: Stage, directory: Path, rehearse: bool, left: float) -> dict[str, Any]:
    """The stage's result: its own, or why it has none."""
    path = directory / f"{stage.name}.json"
    path.unlink(missing_ok=True)
    limit = min(stage.seconds * (10 if rehearse else 1), left)
    if limit < 5:
        return {"status": "not measured", "reason": "no time was left"}
    environment = dict(os.environ)
    if rehearse:
        environment["TRITON_INTERPRET"] = "1"
    # Triton's kernels stay where later stages, and a later `--only`, find them.
    environment.setdefault("TRITON_CACHE_DIR", str(directory / "triton_cache"))
    command = [sys.executable, "-m", f"benchmarks.gpu.{stage.name}", str(path), *(["--rehearse"] if rehearse else [])]
    start = time.monotonic()
    print(f"--- {stage.name}, at most {limit:.0f} s", flush=True)
    process = subprocess.Popen([*command, "--seconds", str(limit)], env=environment, start_new_session=True)
    try:
        code = process.wait(timeout=limit + 2)
        reason = f"exit status {code}"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()
        code, reason = 1, "out of time"
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    result.setdefault("status", "passed" if code == 0 else f"failed: {reason}")
    if code != 0 and result["status"] == "passed":
        result["status"] = f"failed: {reason}"
    result["seconds"] = round(time.monotonic() - start, 1)
    return result


if __name__ == "__main__":
    sys.exit(main())
