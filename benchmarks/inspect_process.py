"""`policyquant inspect` as a whole process, from the shell's point of view, on DeepSeek-V3's index with forty rules."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.models import FORTY_RULES, index_text, read_model
from benchmarks.processes import output_of, policyquant, python
from benchmarks.report import Bar, Outcome, times
from benchmarks.timing import Contender, Timing, interleaved

TABLE_MOST_TIMES: Final = 6
JSON_MOST_TIMES: Final = 3

_PARSE: Final = "import json, sys; json.load(open(sys.argv[1]))"

_PARSE_AND_DUMP: Final = """
import json, os, sys, time
index = json.load(open(sys.argv[1]))
start = time.perf_counter()
result = json.load(open(sys.argv[2]))
built = time.perf_counter() - start
sys.stdout.write(json.dumps(result, ensure_ascii=False))
sys.stdout.flush()
sys.stderr.write(str(built))
sys.stderr.flush()
os._exit(0)
"""
"""Parses the index and writes a result of the same size. Its objects are there "before": the time to make them is
taken off, and they are not torn down."""


def run(*, tiny: bool = False) -> Outcome:
    """Start the processes in turns, their output going to a pipe."""
    name = "Mixtral-8x7B-v0.1" if tiny else "DeepSeek-V3"
    with TemporaryDirectory() as folder:
        index = Path(folder, "model.safetensors.index.json")
        index.write_text(index_text(name), encoding="utf-8")
        Path(folder, "config.json").write_text(json.dumps(read_model(name)["config"]), encoding="utf-8")
        policy = FORTY_RULES
        if tiny:
            policy = Path(folder, "policy.yaml")
            policy.write_text('version: 1\nlayers: {"decoder.*.moe": fp8}\n', encoding="utf-8")
        return _measure(name, index, policy, Path(folder, "result.json"), 2 if tiny else 9)


def _measure(name: str, index: Path, policy: Path, result: Path, rounds: int) -> Outcome:
    inspect = policyquant("inspect", index, "--policy", policy)
    result.write_bytes(output_of([*inspect, "--json"]))
    parse = python(_PARSE, index)
    dump = python(_PARSE_AND_DUMP, index, result)
    wall, parsing = interleaved(
        (Contender("inspect", lambda _: output_of(inspect)), Contender("", lambda _: output_of(parse))), rounds
    )
    ours_json, dumping = _json_rounds([*inspect, "--json"], dump, rounds)
    layers = len(json.loads(result.read_bytes())["layers"])
    outcome = Outcome()
    outcome.tables.append(
        times(
            f"{name}'s index, {index.stat().st_size:,} bytes; a table, through a pipe",
            ["policyquant inspect", "floor: Python that parses it"],
            [wall, parsing],
        )
    )
    outcome.tables.append(
        times(
            f"The same with --json: {layers:,} layers, {result.stat().st_size:,} bytes",
            ["policyquant inspect --json", "floor: Python that parses it and dumps as much"],
            [ours_json, dumping],
        )
    )
    outcome.bars.append(Bar("inspect", wall.minimum / parsing.minimum, "at most", TABLE_MOST_TIMES))
    outcome.bars.append(Bar("inspect --json", ours_json.minimum / dumping.minimum, "at most", JSON_MOST_TIMES))
    return outcome


def _json_rounds(ours: list[str], floor: list[str], rounds: int) -> tuple[Timing, Timing]:
    """In turns too; the floor's own time is what its process took, less what it says that its preparation took."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        seconds[0].extend(interleaved([Contender("", lambda _: output_of(ours))], 1)[0].seconds)
        start = time.perf_counter()
        done = subprocess.run(floor, capture_output=True, check=True)
        seconds[1].append(time.perf_counter() - start - float(done.stderr))
    return Timing(tuple(seconds[0])), Timing(tuple(seconds[1]))
