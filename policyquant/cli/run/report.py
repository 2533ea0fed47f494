"""What is said of a run: memory, tokens and their speed, for people and as JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from policyquant.cli.sizes_text import bytes_text, count_text
from policyquant.cli.tables import Column, Table

if TYPE_CHECKING:
    from policyquant.cli.run.memory import Memory
    from policyquant.cli.run.prompt import Prompt
    from policyquant.cli.run.writing import Ended, Written

_ENDINGS: Final[dict[Ended, str]] = {
    "end token": "then the end of the text",
    "max new tokens": "then stopped by --max-new-tokens",
    "max positions": "then stopped by the model's max_position_embeddings",
}


@dataclass(frozen=True)
class Sampling:
    """How each token is chosen."""

    temperature: float
    top_k: int | None
    seed: int | None
    """None: nothing is drawn."""

    @classmethod
    def chosen(cls, temperature: float, top_k: int | None, seed: int | None) -> Sampling:
        """As asked for; where tokens are drawn, with a seed, so that the run can be repeated."""
        if temperature and seed is None:
            seed = random.SystemRandom().randrange(2**32)
        return cls(temperature, top_k, seed if temperature else None)


def report_pairs(
    prompt: Prompt, written: Written, sampling: Sampling, memory: Memory, build_seconds: float
) -> list[tuple[str, str]]:
    """Titles and values."""
    pairs = [
        ("memory", _memory_text(memory)),
        ("KV cache", f"{bytes_text(memory.kv_cache)} for {count_text(memory.positions, 'position')}"),
    ]
    if memory.peak_resident is not None:
        pairs.append(("process", f"{bytes_text(memory.peak_resident)} at most"))
    pairs += [
        ("built in", f"{build_seconds:.1f} s"),
        ("prompt", f"{count_text(len(prompt.ids), 'token')}{_speed_text(_prompt_speed(prompt, written))}"),
        (
            "written",
            f"{count_text(len(written.ids), 'token')}{_speed_text(_token_speed(written))}, {_ENDINGS[written.ended]}",
        ),
    ]
    if sampling.seed is not None:
        pairs.append(("seed", str(sampling.seed)))
    return pairs


def report_json(
    model: str,
    policy: str | None,
    prompt: Prompt,
    written: Written,
    sampling: Sampling,
    memory: Memory,
    build_seconds: float,
    launches: Mapping[tuple[str, str], int],
) -> str:
    """The same, the text and the operators that ran as JSON; `model` and `policy` are what they are called."""
    report = {
        "model": model,
        "policy": policy,
        "prompt": prompt.text,
        "prompt_token_ids": prompt.ids,
        "text": written.text,
        "token_ids": written.ids,
        "ended": written.ended,
        "sampling": asdict(sampling),
        "bytes": asdict(memory),
        "seconds": {
            "build": build_seconds,
            "prompt": written.prompt_seconds,
            "generation": written.token_seconds,
        },
        "tokens_per_second": {"prompt": _prompt_speed(prompt, written), "generation": _token_speed(written)},
        "kernels": [
            {"operator": operator, "implementation": implementation, "launches": count}
            for (operator, implementation), count in sorted(launches.items())
        ],
    }
    return json.dumps(report, ensure_ascii=False, indent=1) + "\n"


def launches_table(launches: Mapping[tuple[str, str], int]) -> Table:
    """Which implementation of each operator ran, and how often."""
    columns = (Column("operator", style="cyan"), Column("implementation"), Column("launches", right=True))
    return Table(columns, [(*names, f"{count:,}") for names, count in sorted(launches.items())])


def _memory_text(memory: Memory) -> str:
    text = f"{bytes_text(memory.stored)} as stored -> {bytes_text(memory.built)} built"
    if memory.planned is None or memory.planned == memory.built:
        return text
    return f"{text} (planned: {bytes_text(memory.planned)})"


def _prompt_speed(prompt: Prompt, written: Written) -> float | None:
    return len(prompt.ids) / written.prompt_seconds if written.prompt_seconds else None


def _token_speed(written: Written) -> float | None:
    """Of the tokens after the first, which comes with reading the prompt."""
    return (len(written.ids) - 1) / written.token_seconds if written.token_seconds else None


def _speed_text(speed: float | None) -> str:
    return "" if speed is None else f", {speed:.1f} tokens/s"
