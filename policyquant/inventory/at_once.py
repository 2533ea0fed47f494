"""Calls that mostly wait, several at once, in threads that keep nobody waiting when it ends early."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def each_at_once(call: Callable[[Item], Result], items: Sequence[Item], most: int) -> Iterator[tuple[Item, Result]]:
    """Each item with what `call` returns for it, in the order in which they finish.

    The first exception that a call raises is raised here. Calls under way are then left to themselves, and no more
    begin: the threads are daemons, which the interpreter does not wait for, as it does for those of an executor.

    Args:
        call: Safe to run in several threads.
        items: What to call it with.
        most: How many calls run at a time.
    """
    left = iter(items)
    lock = threading.Lock()
    done: SimpleQueue[tuple[Item, Result] | BaseException] = SimpleQueue()
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            try:
                with lock:
                    item = next(left)
            except StopIteration:
                return
            try:
                done.put((item, call(item)))
            except BaseException as error:
                ended.set()
                done.put(error)

    for _ in range(min(most, len(items))):
        threading.Thread(target=work, daemon=True).start()
    try:
        for _ in items:
            outcome = done.get()
            if isinstance(outcome, BaseException):
                raise outcome
            yield outcome
    finally:
        ended.set()
