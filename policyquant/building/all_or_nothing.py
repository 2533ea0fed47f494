"""Modules that are changed together: as before if anything goes wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def all_or_nothing(modules: Iterable[nn.Module]) -> Iterator[None]:
    """If an exception leaves it, the modules get their classes, attributes, parameters and buffers back.

    What was written into a tensor in place stays written. The old tensors are kept until the end.
    """
    before = [
        (
            module,
            type(module),
            {**module.__dict__, "_parameters": dict(module._parameters), "_buffers": dict(module._buffers)},
        )
        for module in modules
    ]
    try:
        yield
    except BaseException:
        for module, kind, attributes in before:
            module.__class__ = kind
            module.__dict__.clear()
            module.__dict__.update(attributes)
        raise
