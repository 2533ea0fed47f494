"""Calls that are described in words, and every operator by them: with and without data, on a GPU that is not here."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from policyquant.kernels import dispatch
from policyquant.kernels.calls import Call, Described, UnknownWordError, call, described
from policyquant.kernels.dispatch import Machine
from policyquant.kernels.machine import OPTIONAL_PACKAGES

OPERATORS = sorted(dispatch.operators())
H200 = Machine("cuda", (9, 0), 132, frozenset(OPTIONAL_PACKAGES))
ROWS = (0, 1, 3, 4, 5)


def small(operator: str, m: int, device: str, **properties: Any) -> Call:
    """A call whose sizes nothing divides."""
    scales = "block" if operator == "block_scaled_mm" else "channel"
    sizes = {"n": 256, "k": 384, "experts": 3, "heads": 2, "head_dim": 64}
    return call(operator, Described(m=m, device=device, **{"scales": scales, **sizes, **properties}))


def results(wanted: Call) -> tuple[torch.Tensor, ...]:
    made = getattr(torch.ops.policyquant, wanted.operator).default(*wanted.inputs)
    return () if made is None else made if isinstance(made, tuple) else (made,)


def layout(values: tuple[torch.Tensor, ...]) -> list[tuple[Any, ...]]:
    """Shapes, dtypes, and the strides that matter: not those of dimensions with at most one element."""
    return [
        (
            tuple(value.shape),
            value.dtype,
            [step for step, size in zip(value.stride(), value.shape, strict=True) if size > 1 and value.numel()],
        )
        for value in values
    ]


@pytest.mark.parametrize("aligned", [True, False], ids=["aligned", "unaligned"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_without_data_on_a_gpu_an_operator_has_the_layouts_that_it_has_on_a_cpu(operator: str, aligned: bool) -> None:
    for m in ROWS:
        real = layout(results(small(operator, m, "cpu", aligned=aligned, bias=True)))
        with FakeTensorMode():
            made = results(small(operator, m, "cuda", aligned=aligned, bias=True))
            assert {value.device.type for value in made} <= {"cuda"}
            assert layout(made) == real, m


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (9, 0), (10, 0)])
@pytest.mark.parametrize("operator", OPERATORS)
def test_some_implementation_runs_every_operator_on_every_gpu(operator: str, capability: tuple[int, int]) -> None:
    on = Machine("cuda", capability, 100, frozenset({"triton"}))
    for wanted in (small(operator, 5, "meta"), small(operator, 5, "meta", aligned=False)):
        chosen = wanted.chosen(on)
        reasons = [reason for each, reason in wanted.verdicts(on) if each is chosen]
        assert reasons == [None]


@pytest.mark.parametrize("operator", OPERATORS)
def test_what_has_a_kernel_runs_by_one_from_the_first_gpu_with_fp8(operator: str) -> None:
    if len(dispatch.operators()[operator]) > 1:
        assert small(operator, 16, "meta").chosen(H200).name != "torch"


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("scaled_mm m=1 n=4096 k=4096", "triton"),
        ("scaled_mm m=4096 n=4096 k=4096", "torch_scaled_mm"),
        ("scaled_mm m=4096 n=4096 k=4096 unaligned", "triton"),
        ("scaled_mm m=1 n=4096 k=4096 block", "triton"),
    ],
)
def test_the_size_and_the_alignment_of_a_product_decide_who_runs_it(text: str, runs: str) -> None:
    assert described(text).chosen(H200).name == runs


def test_what_is_forced_holds_for_a_described_call_too() -> None:
    with dispatch.force(scaled_mm="torch"):
        assert described("scaled_mm").chosen(H200).name == "torch"


def test_words_change_what_they_name() -> None:
    _, a = "", described("scaled_mm m=3 n=5 k=7 tensor fp16 e5m2 bias unaligned out=fp8").inputs
    assert [tuple(x.shape) for x in a[:5]] == [(3, 7), (5, 7), (1,), (1,), (5,)]
    assert (a[0].dtype, a[0].stride(), a[0].storage_offset()) == (torch.float8_e5m2, (8, 1), 1)
    assert (a[4].dtype, a[-1]) == (torch.float16, torch.float8_e4m3fn)


def test_products_by_blocks_are_an_operator_of_their_own() -> None:
    wanted = described("scaled_mm m=3 n=300 k=200 block")
    assert wanted.operator == "block_scaled_mm"
    assert [tuple(scale.shape) for scale in wanted.inputs[2:4]] == [(3, 2), (3, 2)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there is no operator ''"),
        ("scaled_m m=1", "there is no operator 'scaled_m'; did you mean 'scaled_mm'"),
        ("scaled_mm chanel", "there is no word 'chanel'; did you mean 'channel'"),
        ("scaled_mm exprts=3", "there is no word 'exprts=3'; did you mean 'experts='"),
        ("scaled_mm m=", "m is a whole number from 0"),
        ("scaled_mm n=0", "n is a whole number from 1 to 2\\*\\*31 - 1, found '0'"),
        ("scaled_mm k=-3", "found '-3'"),
        ("scaled_mm k=99999999999", "found '99999999999'"),
    ],
)
def test_a_word_that_says_nothing_is_an_error_with_the_nearest(text: str, message: str) -> None:
    with pytest.raises(UnknownWordError, match=message):
        described(text)
