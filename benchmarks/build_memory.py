"""Peak memory of `build` on models of a gigabyte, dense and with experts, beside what the built model has to hold.

Read from /proc by a thread in the process that builds, above what `import torch` takes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks.build_smollm2 import SMALL
from benchmarks.checkpoints import llama_config, llama_shapes, mixtral_config, mixtral_shapes, write_checkpoint
from benchmarks.processes import benchmark, output_of
from benchmarks.report import Bar, Outcome, mebibytes, table

NEEDS: Final = ("torch",)
MOST_ABOVE: Final = 64 * 2**20
"""Bytes above those of the built model and of its largest layer in the precision of the source."""
MOST_MAPPED: Final = 256 * 2**20
METHODS: Final = ("none", "fp8", "int8_weight_only")

DENSE: Final[dict[str, Any]] = llama_config(
    vocab_size=32_000,
    hidden_size=2048,
    intermediate_size=5504,
    num_hidden_layers=8,
    num_attention_heads=16,
    num_key_value_heads=16,
)
EXPERTS: Final[dict[str, Any]] = mixtral_config(
    vocab_size=32_000,
    hidden_size=1024,
    intermediate_size=3584,
    num_hidden_layers=6,
    num_attention_heads=16,
    num_key_value_heads=4,
    num_local_experts=8,
    num_experts_per_tok=2,
)


def run(*, tiny: bool = False) -> Outcome:
    """Each model is written, built with each method in a process of its own, and removed."""
    if not sys.platform.startswith("linux"):
        return Outcome([f"left out: Linux alone tells a process about its memory in /proc, this is {sys.platform}"])
    small = {**SMALL, "tie_word_embeddings": False}
    models = [
        ("dense, one file", small if tiny else DENSE, 1),
        ("dense, 4 files", small if tiny else DENSE, 4),
        ("8 experts, 4 files", mixtral_config(**_SMALL_EXPERTS) if tiny else EXPERTS, 4),
    ]
    rows, above, mapped = [], [], []
    for name, config, shards in models:
        shapes = mixtral_shapes(config) if config["model_type"] == "mixtral" else llama_shapes(config)
        with TemporaryDirectory() as folder:
            size = write_checkpoint(Path(folder), shapes, config, shards)
            for method in METHODS[:1] if tiny else METHODS:
                anonymous, file, stored, largest = map(
                    int, output_of(benchmark("sampled_build", method, folder)).split()
                )
                above.append(anonymous - stored - largest)
                mapped.append(file)
                cells = (size, stored, largest, anonymous, anonymous - stored, file)
                rows.append((f"{name}, {method}", *map(mebibytes, cells)))
    header = ("", "source", "built", "largest layer", "peak anonymous", "above built", "peak mapped")
    outcome = Outcome([table("Above `import torch`; the floor is what the built model holds", header, rows)])
    limit = MOST_ABOVE / 2**20
    outcome.bars.append(
        Bar("anonymous memory above model and largest layer", max(above) / 2**20, "at most", limit, "MiB")
    )
    outcome.bars.append(Bar("mapped file pages", max(mapped) / 2**20, "at most", MOST_MAPPED / 2**20, "MiB"))
    return outcome


_SMALL_EXPERTS: Final[dict[str, Any]] = {
    **{key: value for key, value in SMALL.items() if key not in ("architectures", "model_type", "tie_word_embeddings")},
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
