"""Layers that are stored as they are to be held: the system copies them, several at a time.

Most of such a copy is the first touch of new memory, which processors share. No tensor is computed with in these
threads: PyTorch would give each of them its own threads beside.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final

_THREADS: Final = min(4, os.cpu_count() or 1)
"""More do not copy faster: memory is what is waited for."""


class Copies:
    """Copies under way. Leaving the context waits for them; if it is left by an error, those not begun are dropped."""

    def __enter__(self) -> Copies:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="policyquant-copy")
        self._futures: list[Future[Any]] = []
        return self

    def submit(self, copy: Callable[..., object], *arguments: object) -> None:
        """Run `copy` beside the caller. What it raises is raised when the context is left, or at a later call."""
        if self._futures and self._futures[0].done():
            self._futures.pop(0).result()
        self._futures.append(self._pool.submit(copy, *arguments))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=True, cancel_futures=kind is not None)
        if kind is None:
            for future in self._futures:
                future.result()
