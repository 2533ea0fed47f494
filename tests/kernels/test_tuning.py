"""Tuning from end to end in Triton's interpreter, whose time is as real as its results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from policyquant.kernels import dispatch, ops, reference, tuning
from policyquant.kernels.calls import UnknownWordError
from policyquant.kernels.tuning import configuration, measured, shipped
from policyquant.kernels.tuning.clock import sets_needed
from policyquant.kernels.tuning.search import Failure
from policyquant.kernels.tuning.tune import Measured, _Case, _measure, agree, tune
from tests.kernels.tuned import HERE, own_cache, without_gpu

__all__ = ["own_cache"]

HOPPER = (9, 0)
E4M3 = torch.float8_e4m3fn

pytestmark = [without_gpu, pytest.mark.usefixtures("own_cache")]


def test_what_is_faster_is_kept_and_used() -> None:
    """From programs of which each does little: every one costs the interpreter time."""
    slow = {"ELEMENTS": 512, "num_warps": 4}
    measured.add(HERE, "kv_cache", {"many tokens": {"configuration": slow}})
    tuning.forget()
    assert configuration("kv_cache", HOPPER, "many tokens") == slow
    told: list[Measured] = []
    made = tune(["kv_cache"], gpu=HERE, tell=told.append)
    assert made == told
    assert [each.shape_class for each in made] == ["few tokens", "many tokens"]
    found = made[1].found
    assert found is not None
    assert found.best is not None
    assert found.best["ELEMENTS"] > 512
    assert found.before is not None
    assert found.seconds is not None
    assert found.before > 1.03 * found.seconds > 0
    assert configuration("kv_cache", HOPPER, "many tokens") == found.best
    kept = measured.read(HERE)["kv_cache"]["many tokens"]
    assert kept == {"configuration": found.best, "seconds": found.seconds, "before": found.before}


class Time:
    """The clock of a search: a call is made, and takes as long as is said here, however long it takes."""

    def __init__(self, measurement: float) -> None:
        self.now = 0.0
        self.measurement = measurement

    def monotonic(self) -> float:
        return self.now

    def __call__(self, call: Callable[[Any], object], sets: Sequence[Any], device: str) -> float:
        call(sets[0])
        self.now += self.measurement
        return 1.0


@pytest.fixture
def a_second_each(monkeypatch: pytest.MonkeyPatch) -> Time:
    """Every measurement takes a second, so that a number of seconds is a number of measurements."""
    made = Time(1.0)
    monkeypatch.setattr(sys.modules[tune.__module__], "time", made)
    return made


def test_where_nothing_is_faster_nothing_changes(a_second_each: Time) -> None:
    made = tune(["kv_cache"], gpu=HERE, seconds=20, clock=a_second_each)
    assert all(each.found is not None and each.found.best is None for each in made)
    assert measured.read(HERE) == {"kv_cache": {}}
    assert configuration("kv_cache", HOPPER, "few tokens") == shipped("kv_cache", HOPPER, "few tokens")


@pytest.mark.parametrize(
    ("call", "tuned"),
    [
        ("scaled_mm m=3 n=64 k=1100", ["16 rows", "sum of parts"]),
        ("fp8_weight_only_mm m=3 n=64 k=130", ["few rows"]),
        ("grouped_scaled_mm m=6 n=64 k=144 experts=3 block", ["16 rows, blocks"]),
        ("grouped_scaled_mm m=6 n=64 k=130 experts=3", ["unaligned"]),
        ("grouped_scaled_mm m=6 n=64 k=130 experts=3 block", ["unaligned, blocks"]),
        ("fused_moe m=3 n=64 k=128 experts=2 top_k=1", ["16 rows"]),
        ("fused_moe m=3 n=64 k=130 experts=2 top_k=1", ["unaligned"]),
        ("fused_moe m=3 n=64 k=130 experts=2 top_k=1 block", ["unaligned, blocks"]),
        ("silu_and_mul m=3 n=130", ["tile 256"]),
        ("gated_activation_group_fp8_quant m=3 n=130 column_major", ["group 128 column major"]),
        ("fused_add_rms_norm_static_fp8_quant m=3 k=130", ["row 256"]),
        ("group_fp8_quant m=6 k=130 column_major", ["many rows"]),
        ("static_scaled_fp8_quant m=3 k=130 unaligned", ["tile"]),
        ("scaled_int8_mm m=3 n=64 k=1024", ["16 rows", "sum of parts"]),
        ("per_token_int8_quant m=3 k=130", ["row 256"]),
        ("int4_weight_only_mm m=3 n=64 k=256", ["few rows"]),
        ("int4_group_quant n=3 k=256 group=32", ["groups of 32"]),
    ],
)
def test_a_call_of_ones_own_tunes_what_it_asks_for(call: str, tuned: list[str], a_second_each: Time) -> None:
    """Each candidate runs, and is right: of what fits, none fails in the interpreter."""
    made = tune(calls=[call], gpu=HERE, seconds=16 * len(tuned), clock=a_second_each)
    assert [each.shape_class for each in made] == tuned
    for each in made:
        assert each.calls == [call]
        assert each.found is not None
        assert each.found.before == 1.0
        assert each.found.failed == {}
        assert each.found.tried > 0


def test_other_families_are_left_out_of_a_call() -> None:
    made = tune(["norm"], ["silu_and_mul m=3 n=130"], gpu=HERE)
    assert made == []


def test_time_is_kept(a_second_each: Time) -> None:
    """Five seconds for four classes, and the first measurement of each takes two: the last is not begun, and named."""
    a_second_each.measurement = 2.0
    calls = [f"silu_and_mul m=3 n={n}" for n in (130, 300, 600, 1100)]
    made = tune(calls=calls, gpu=HERE, seconds=5, clock=a_second_each)
    assert [each.refused for each in made] == [None, None, None, "no time was left"]
    for each in made[:3]:
        assert each.found is not None
        assert (each.found.before, each.found.tried) == (1.0, 0)
        assert each.found.left > 0
    assert a_second_each.now == 6


def _measures(text: str, family: str, shape_class: str, exact: bool) -> Callable[[Any], float | Failure]:
    return _measure(family, shape_class, [_Case(text, "triton", "cpu", exact)], Time(1.0))


def test_a_candidate_with_another_result_fails() -> None:
    """A tile that holds half of a row takes the scale of that half."""
    measure = _measures("per_token_scaled_fp8_quant m=3 k=256", "quantize", "row 256", True)
    present = shipped("quantize", HOPPER, "row 256")
    assert measure(present) == 1.0
    assert measure({**present, "BLOCK_M": 2}) == 1.0
    assert measure({**present, "BLOCK_N": 128}) == Failure("it gives another result")


def test_a_candidate_that_does_not_compile_fails() -> None:
    measure = _measures("rms_norm m=3 k=256", "norm", "row 256", False)
    present = shipped("norm", HOPPER, "row 256")
    assert measure(present) == 1.0
    assert isinstance(measure({**present, "BLOCK_M": 3}), Failure)
    assert measure(present) == 1.0


def test_several_calls_count_alike() -> None:
    """By the geometric mean: the longest does not decide alone."""
    times = iter([1.0, 100.0])
    cases = [_Case(f"rms_norm m={m} k=256", "triton", "cpu", False) for m in (1, 2)]
    measure = _measure("norm", "row 256", cases, lambda call, sets, device: next(times))
    assert measure(shipped("norm", HOPPER, "row 256")) == pytest.approx(10.0)


def test_results_agree_bit_for_bit_or_within_a_rounding() -> None:
    x = torch.randn(40, 30)
    other = x.clone()
    other[17, 3] *= 1 + 1e-4
    assert agree(x, x.clone(), exact=True)
    assert not agree(other, x, exact=True)
    assert agree(other, x, exact=False)
    # One wrong row among many, for which a mean over all would have no eye.
    wide = torch.randn(4096, 8)
    wrong = wide.clone()
    wrong[5] = -wrong[5]
    assert not agree(wrong, wide, exact=False)
    assert not agree(torch.full_like(x, torch.nan), x, exact=False)
    assert agree(x.to(E4M3), x.to(E4M3), exact=False)
    assert not agree(x.to(E4M3), (-x).to(E4M3), exact=False)


def test_a_tuned_kernel_gives_what_the_reference_gives() -> None:
    measured.add(HERE, "quantize", {"row 256": {"configuration": {"BLOCK_M": 2, "BLOCK_N": 256, "num_warps": 1}}})
    tuning.forget()
    x = torch.randn(5, 200).bfloat16()
    with dispatch.force("triton"):
        q, scale = ops.per_token_scaled_fp8_quant(x)
    expected, expected_scale = reference.per_token_scaled_fp8_quant(x)
    assert torch.equal(q.view(torch.uint8), expected.view(torch.uint8))
    assert torch.equal(scale, expected_scale.float())


def test_what_is_not_known_is_told_with_the_nearest() -> None:
    with pytest.raises(UnknownWordError, match="there is no family 'norms'; did you mean 'norm'"):
        tune(["norms"], gpu=HERE)
    with pytest.raises(UnknownWordError, match="there is no operator 'rms_norn'; did you mean 'rms_norm'"):
        tune(calls=["rms_norn"], gpu=HERE)


@pytest.mark.parametrize(("size", "sets"), [(10, 30), (100, 3), (101, 3), (299, 2), (10**9, 1), (1, 64), (0, 64)])
def test_inputs_are_rotated_until_they_do_not_fit_into_the_cache(size: int, sets: int) -> None:
    assert sets_needed(size, 100) == sets
