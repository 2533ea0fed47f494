"""Whether layers are being made without values: a model that is constructed on meta needs none in any weight."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _State(threading.local):
    active = False


_state = _State()


def makes_placeholders() -> bool:
    """Whether weights of layers that are made now, in this thread, go to meta at once."""
    return _state.active


@contextmanager
def placeholders(active: bool) -> Iterator[None]:
    """Within it, in this thread, weights of layers are made on meta, or where they are asked for."""
    before, _state.active = _state.active, active
    try:
        yield
    finally:
        _state.active = before
