"""Pausing Python's cyclic garbage collector while very many containers are made and none is dropped."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Reading a model or a long policy, and resolving, makes hundreds of thousands of containers that are all kept; the
    collector's passes over them take longer than the work itself."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
