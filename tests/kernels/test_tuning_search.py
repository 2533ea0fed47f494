"""The search knows configurations and seconds only, so both are made up here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from policyquant.kernels.tuning.search import Failure, search

PRESENT = {"BLOCK_M": 1}


def block(size: int) -> dict[str, int]:
    return {"BLOCK_M": size}


def takes(seconds: Mapping[int, Any]) -> Callable[[Mapping[str, Any]], Any]:
    """A clock that gives what stands here; of a list, one after the other."""
    given = {size: iter(each) if isinstance(each, list) else each for size, each in seconds.items()}

    def measure(tile: Mapping[str, Any]) -> Any:
        found = given[tile["BLOCK_M"]]
        return next(found) if isinstance(found, Iterator) else found

    return measure


def test_the_fastest_takes_the_place_of_the_present_one() -> None:
    found = search(PRESENT, [block(2), block(4), block(8)], takes({1: 1.0, 2: 0.9, 4: 0.5, 8: 0.7}))
    assert (found.best, found.before, found.seconds, found.tried, found.left) == (block(4), 1.0, 0.5, 3, 0)


@pytest.mark.parametrize(("seconds", "wins"), [(0.98, False), (0.9710, False), (0.9708, True), (0.9, True)])
def test_less_than_three_percent_are_not_enough(seconds: float, wins: bool) -> None:
    found = search(PRESENT, [block(2)], takes({1: 1.0, 2: seconds}))
    assert (found.best == block(2)) is wins
    assert found.seconds == (seconds if wins else 1.0)


def test_what_only_seemed_faster_does_not_win() -> None:
    """The present one was slow at first, for a clock that rose since."""
    found = search(PRESENT, [block(2)], takes({1: [1.0, 0.8], 2: [0.8, 0.8]}))
    assert found.best is None


def test_then_the_next_one_may() -> None:
    found = search(PRESENT, [block(2), block(4)], takes({1: [1.0, 1.0, 1.0], 2: [0.5, 1.0], 4: [0.8, 0.8]}))
    assert (found.best, found.seconds) == (block(4), 0.8)


def test_candidates_that_fail_are_skipped_and_counted() -> None:
    resources, wrong = Failure("OutOfResources"), Failure("it gives another result")
    clock = takes({1: 1.0, 2: resources, 4: wrong, 8: 0.5, 16: resources})
    found = search(PRESENT, [block(size) for size in (2, 4, 8, 16)], clock)
    assert (found.best, found.tried) == (block(8), 4)
    assert found.failed == {"OutOfResources": 2, "it gives another result": 1}


def test_one_that_fails_when_it_is_measured_again_does_not_win() -> None:
    found = search(PRESENT, [block(2)], takes({1: 1.0, 2: [0.5, Failure("CompilationError")]}))
    assert found.best is None


def test_where_the_present_one_fails_nothing_is_right_to_compare_with() -> None:
    found = search(PRESENT, [block(2)], takes({1: Failure("CompilationError"), 2: 0.5}))
    assert (found.best, found.before, found.tried, found.left) == (None, None, 0, 1)
    assert found.failed == {"CompilationError": 1}


def test_what_there_is_no_time_for_is_counted() -> None:
    time = iter([True, True, False])
    others = [block(size) for size in (2, 4, 8, 16)]
    found = search(PRESENT, others, takes({1: 1.0, 2: 0.9, 4: 0.8}), lambda: next(time))
    assert (found.best, found.tried, found.left) == (block(4), 2, 2)
