"""Launching a Triton kernel, or recording that it would be launched.

Recorded launches are what is checked without a GPU: each says which kernel, specialized how, and compiled for what.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from policyquant.kernels.machine import machine


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a kernel.

    Args:
        kernel: the function that `triton.jit` made.
        grid: programs in each dimension.
        arguments: every argument of the kernel by its name, constexprs included.
        num_warps, num_stages: as Triton takes them.
        options: further options of the compiler.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: Mapping[str, Any]
    num_warps: int
    num_stages: int
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """The GPU that kernels are launched on, or compiled for."""

    capability: tuple[int, int]
    multiprocessors: int


_recorders: list[tuple[Target, list[Launch]]] = []
INTERPRETED = Target((9, 0), 4)
"""What launches are made for that the interpreter runs: few multiprocessors, so that programs loop."""


def target_of(x: torch.Tensor) -> Target:
    """The GPU that holds x, or the one that launches are being recorded for."""
    if _recorders:
        return _recorders[-1][0]
    if x.device.type != "cuda":
        return INTERPRETED
    on = machine("cuda", x.device.index)
    return Target(on.capability or (0, 0), on.multiprocessors)


def launch(
    kernel: Any,
    grid: tuple[int, ...],
    *,
    num_warps: int = 4,
    num_stages: int = 3,
    options: Any = None,
    **arguments: Any,
) -> None:
    """Launch `kernel` on the current device's current stream; an empty grid launches nothing.

    Products and sums are fused where the compiler likes (fma), whatever Triton's version says by default: the kernels
    name the operations whose rounding matters.
    """
    if 0 in grid:
        return
    options = {"enable_fp_fusion": True, **(options or {})}
    if _recorders:
        _recorders[-1][1].append(Launch(kernel, grid, arguments, num_warps, num_stages, options))
        return
    kernel[grid](**arguments, num_warps=num_warps, num_stages=num_stages, **options)


@contextmanager
def recording(target: Target) -> Iterator[list[Launch]]:
    """Inside, launches for `target` are listed and nothing runs, so meta tensors may stand for a GPU's."""
    launches: list[Launch] = []
    _recorders.append((target, launches))
    try:
        yield launches
    finally:
        _recorders.pop()
