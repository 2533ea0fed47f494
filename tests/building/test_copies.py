"""Layers that are copied beside the caller: all are done when the context is left, and no failure is lost."""

from __future__ import annotations

import threading
import time

import pytest

from policyquant.building.copies import Copies


def test_all_copies_are_done_when_the_context_is_left() -> None:
    done: list[int] = []
    with Copies() as copies:
        for number in range(20):
            copies.submit(done.append, number)
    assert sorted(done) == list(range(20))


def test_a_copy_that_fails_fails_the_whole() -> None:
    def fail() -> None:
        raise ValueError("the disk is gone")

    def run() -> None:
        with Copies() as copies:
            copies.submit(fail)
            for _ in range(20):
                copies.submit(time.sleep, 0)

    with pytest.raises(ValueError, match="the disk is gone"):
        run()


def test_copies_that_have_not_begun_are_dropped_when_the_caller_fails() -> None:
    begun: list[int] = []
    go = threading.Event()

    def copy(number: int) -> None:
        begun.append(number)
        go.wait(10)

    def run() -> None:
        with Copies() as copies:
            for number in range(100):
                copies.submit(copy, number)
            threading.Timer(0.05, go.set).start()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    assert len(begun) < 100
