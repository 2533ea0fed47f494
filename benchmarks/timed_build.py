"""One contender of `build_smollm2`, alone in its process.

    python -m benchmarks.timed_build CONTENDER SMALL MODEL TIMES

Reads the small checkpoint, so that everything is imported, then the model's, TIMES over. Prints the bytes of what it
made, then seconds, one a line. The first time, memory is new from the system; later ones find what the one before left.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from policyquant import build
from policyquant.models.families import model_factory

Made = dict[str, torch.Tensor]


def read_and_copy(folder: Path) -> Made:
    """What has to be done at least to own a checkpoint's tensors."""
    return {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}


def built(folder: Path, method: str) -> Made:
    """A model with one method for every layer that takes it."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    model = build(model_factory(config), policy={"version": 1, "default": method}, source=folder)
    return {f"{prefix}.{name}": tensor for prefix, module in model.named_modules() for name, tensor in _own(module)}


def _own(module: torch.nn.Module) -> list[tuple[str, Any]]:
    return [(name, each) for name, each in (*module._parameters.items(), *module._buffers.items()) if each is not None]


def copied(folder: Path) -> Callable[[], Made]:
    """The floor: as many bytes as the checkpoint has, from memory in use to memory in use."""
    size = (folder / "model.safetensors").stat().st_size
    source, target = torch.ones(size, dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)
    return lambda: {"": target.copy_(source)}


def main(contender: str, small: str, model: str, times: str) -> None:
    """Run one of `peer`, `floor`, or a method's name."""
    run: Callable[[], Made]
    if contender == "floor":
        run = copied(Path(model))
    elif contender == "peer":
        read_and_copy(Path(small))
        run = partial(read_and_copy, Path(model))
    else:
        built(Path(small), contender)
        run = partial(built, Path(model), contender)
    seconds = []
    for _ in range(int(times)):
        gc.collect()
        start = time.perf_counter()
        made = run()
        seconds.append(time.perf_counter() - start)
        size = sum({tensor.data_ptr(): tensor.nbytes for tensor in made.values()}.values())
        del made
    print(size, *seconds, sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
