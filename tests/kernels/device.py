"""Where kernels are tested, and how a call with tensors of the CPU is made there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch

from policyquant.kernels import ops

DEVICE: Final = "cuda" if torch.cuda.is_available() else "cpu"
"""On a CPU, Triton's kernels are interpreted, and CUDA's run thread by thread."""


def on_device(function: Callable[..., Any], *inputs: Any, **targets: Any) -> Any:
    """The function's results on the CPU, as it gives them for these tensors on the device.

    Strides and offsets stay what they are. What it writes into tensors that are given by name is there afterwards.
    """
    moved = {name: _moved(value) for name, value in targets.items()}
    results = function(*map(_moved, inputs), **moved)
    for name, value in targets.items():
        if isinstance(value, torch.Tensor) and DEVICE != "cpu":
            _whole(value).copy_(_whole(moved[name]))
    if isinstance(results, tuple):
        return tuple(each.cpu() for each in results)
    return results.cpu() if isinstance(results, torch.Tensor) else results


def _moved(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return _whole(value).to(DEVICE).as_strided(value.shape, value.stride(), value.storage_offset())


def _whole(x: torch.Tensor) -> torch.Tensor:
    """All of the storage that x is a view of."""
    return torch.empty(0, dtype=x.dtype, device=x.device).set_(x.untyped_storage())


class OnDevice:
    """The functions of `ops`, on the device."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(on_device, getattr(ops, name))
