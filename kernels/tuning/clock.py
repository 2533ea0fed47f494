"""Time of a call: on a GPU of graphs that are replayed, over inputs that together do not fit into the L2 cache."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

REPLAYS: Final = 25
_MOST_SETS: Final = 64


def sets_needed(bytes_of_one: int, cache_bytes: int) -> int:
    """How many sets of inputs take three times the room of the L2 cache; at most 64."""
    return max(1, min(_MOST_SETS, -(-3 * cache_bytes // max(1, bytes_of_one))))


def seconds_of(call: Callable[[Any], object], sets: Sequence[Any], device: str, replays: int = REPLAYS) -> float:
    """Median seconds of one call, over replays of a graph that makes a call with each set of inputs.

    Without a GPU it is one call's time.
    """
    if device != "cuda":
        start = time.perf_counter()
        call(sets[0])
        return time.perf_counter() - start
    cuda: Any = torch.cuda  # Its streams and events are without types.
    side = cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            call(sets[0])
    torch.cuda.current_stream().wait_stream(side)
    # A call that is short beside the cost of starting a graph is made several times in it.
    repeats = max(1, 8 // len(sets))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            for inputs in sets:
                call(inputs)
    graph.replay()
    times: list[float] = []
    for _ in range(replays):
        before, after = (cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        graph.replay()
        after.record()
        after.synchronize()
        times.append(before.elapsed_time(after) / 1e3 / (repeats * len(sets)))
    return statistics.median(times)
