"""Time on a GPU: graphs replayed, inputs rotated past the L2 cache, medians.

Without a GPU (a rehearsal) each call is made once, and its time means nothing.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

REPLAYS: Final = 25
CACHE_BYTES: Final = 3 * 60 * 1024 * 1024
"""Inputs of at least this size together are rotated: three times the L2 cache of an H200."""
MOST_SETS: Final = 64


def sets_needed(bytes_of_one: int) -> int:
    """How many sets of inputs together do not fit into the L2 cache."""
    return max(1, min(MOST_SETS, -(-CACHE_BYTES // max(1, bytes_of_one))))


def seconds_of(call: Callable[[Any], object], sets: Sequence[Any], device: str, replays: int = REPLAYS) -> float:
    """Median seconds of one call, over replays of a graph that makes a call with each set of inputs."""
    if device != "cuda":
        start = time.perf_counter()
        call(sets[0])
        return time.perf_counter() - start
    side = torch.cuda.Stream()
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
    times = []
    for _ in range(replays):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        graph.replay()
        after.record()
        after.synchronize()
        times.append(before.elapsed_time(after) / 1e3 / (repeats * len(sets)))
    return statistics.median(times)


def copy_bandwidth(device: str, size: int = 512 * 1024 * 1024) -> float:
    """Bytes read and written a second by copies within the device's memory."""
    size = size if device == "cuda" else 4096
    pairs = [[torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2)] for _ in range(2)]
    return 2 * size / seconds_of(lambda pair: pair[1].copy_(pair[0]), pairs, device)
