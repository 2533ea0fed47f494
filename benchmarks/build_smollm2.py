"""`build` of SmolLM2-135M beside `safetensors.torch.load_file` and a copy of every tensor.

Each runs in a process of its own, in turns: a model is built once in the life of most processes, and then its memory is
new. Imports are done before the clock starts. What building costs again in the same process is shown too.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.checkpoints import llama_config, llama_shapes, write_checkpoint
from benchmarks.models import read_model
from benchmarks.processes import benchmark, output_of
from benchmarks.report import Bar, Outcome, milliseconds, table
from benchmarks.timing import Timing

NEEDS: Final = ("torch", "safetensors")
MOST_TIMES: Final = {"none": 1.5, "fp8": 4.0}

SMALL: Final[dict[str, Any]] = llama_config(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=1,
    num_attention_heads=4,
    num_key_value_heads=2,
    tie_word_embeddings=True,
)

_NAMES: Final = {
    "none": "build, none",
    "fp8": "build, fp8 per channel",
    "int8_weight_only": "build, int8_weight_only",
    "peer": "load_file and a copy of every tensor",
    "floor": "floor: a copy of as many bytes",
}


def run(*, tiny: bool = False) -> Outcome:
    """Values are random: the layout is SmolLM2's, and time does not depend on values."""
    with TemporaryDirectory() as folder:
        small, model = Path(folder, "small"), Path(folder, "model")
        small.mkdir()
        model.mkdir()
        write_checkpoint(small, llama_shapes(SMALL), SMALL)
        config = SMALL if tiny else llama_config(**{"rms_norm_eps": 1e-5, **read_model("SmolLM2-135M")["config"]})
        size = write_checkpoint(model, llama_shapes(config), config)
        first, later, made = _measured(small, model, rounds=1 if tiny else 5, times=2 if tiny else 4)
    bandwidth = (size + made["floor"]) / first["floor"].minimum
    rows = []
    for contender, name in _NAMES.items():
        floor = (size + made[contender]) / bandwidth
        seconds = first[contender], later[contender]
        cells = [cell for timing, peer in zip(seconds, (first, later), strict=True) for cell in _cells(timing, peer)]
        rows.append((name, f"{made[contender] / 1e6:,.1f} MB", *cells, milliseconds(floor)))
    outcome = Outcome()
    outcome.tables.append(
        table(
            f"{'A small model' if tiny else 'SmolLM2-135M'}, {size:,} bytes of BF16; a copy runs at"
            f" {bandwidth / 1e9:.1f} GB/s, read and written",
            ("minima", "made", "first build", "ratio", "again", "ratio", "bytes / bandwidth"),
            rows,
        )
    )
    for method, limit in MOST_TIMES.items():
        ratio = first[method].minimum / first["peer"].minimum
        outcome.bars.append(Bar(f"build with {method} against load_file and copies", ratio, "at most", limit))
    return outcome


def _cells(timing: Timing, all_of_them: dict[str, Timing]) -> tuple[str, str]:
    return milliseconds(timing.minimum), f"{timing.minimum / all_of_them['peer'].minimum:.3g}×"


def _measured(
    small: Path, model: Path, rounds: int, times: int
) -> tuple[dict[str, Timing], dict[str, Timing], dict[str, int]]:
    """The first time and the others, each in seconds, and bytes made, by contender."""
    first: dict[str, list[float]] = {contender: [] for contender in _NAMES}
    later: dict[str, list[float]] = {contender: [] for contender in _NAMES}
    made: dict[str, int] = {}
    for turn in range(rounds):
        for place in range(len(_NAMES)):
            contender = list(_NAMES)[(turn + place) % len(_NAMES)]
            size, *seconds = output_of(benchmark("timed_build", contender, small, model, times)).split()
            made[contender] = int(size)
            first[contender].append(float(seconds[0]))
            later[contender].extend(map(float, seconds[1:]))
    # The floor is a copy into memory that is there: every time counts alike.
    first["floor"] = later["floor"]
    return _timings(first), _timings(later), made


def _timings(seconds: dict[str, list[float]]) -> dict[str, Timing]:
    return {contender: Timing(tuple(each)) for contender, each in seconds.items()}
