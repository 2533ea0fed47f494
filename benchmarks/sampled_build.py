"""One build of `build_memory`, alone in its process.

    python -m benchmarks.sampled_build METHOD FOLDER

Prints bytes: the most anonymous memory and the most mapped file pages above what `import torch` takes, what the model
stores, and its largest layer in the precision of the source.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")


def resident() -> tuple[int, int]:
    """Anonymous memory and mapped file pages of this process, in bytes."""
    fields = dict(line.split(":", 1) for line in _STATUS.read_text(encoding="ascii").splitlines())
    anonymous, file = (int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "RssFile"))
    return anonymous, file


class Sampler(threading.Thread):
    """Looks at this process's memory about every millisecond. PyTorch lets other threads run within its operators."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.anonymous, self.file = resident()
        self._done = threading.Event()

    def run(self) -> None:
        while not self._done.wait(0.001):
            self.look()

    def look(self) -> None:
        """Take the memory of this moment into account."""
        anonymous, file = resident()
        self.anonymous, self.file = max(self.anonymous, anonymous), max(self.file, file)

    def stop(self) -> None:
        """Look a last time."""
        self._done.set()
        self.join()
        self.look()


def main(method: str, folder: str) -> None:
    """Build with one method for every layer that takes it."""
    torch.ones(1 << 16).add_(1)  # The threads that compute are there before anything is counted.
    anonymous, file = resident()
    from policyquant import build
    from policyquant.layers.base import WeightLayer
    from policyquant.models.families import model_factory

    config = json.loads(Path(folder, "config.json").read_text(encoding="utf-8"))
    sampler = Sampler()
    sampler.start()
    model = build(model_factory(config), policy={"version": 1, "default": method}, source=folder)
    sampler.stop()
    layers = [module for module in model.modules() if isinstance(module, WeightLayer)]
    largest = max(torch.Size(layer.weight_shape).numel() for layer in layers) * torch.bfloat16.itemsize
    stored = {id(each): each.nbytes for each in (*model.parameters(), *model.buffers())}
    print(sampler.anonymous - anonymous, sampler.file - file, sum(stored.values()), largest, sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
