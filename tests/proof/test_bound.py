"""The bound counts what each pipe is asked for, and says which kernels have too little time for it."""

from __future__ import annotations

import pytest

from proof.bound import bound, clocks, passes, rates
from proof.check import too_busy
from proof.sass import Instruction, parse
from tests.proof.listing import COPY, LOOP, UNROLLED, product

ARCHITECTURES = (80, 89, 90, 100)


def of(text: str, trips: tuple[float, ...], traffic: float, **changed: object) -> dict[str, float]:
    arguments = {"architecture": 90, "warps": 4, "programs": 132, "flops": 0.0, "kind": "", **changed}
    return dict(bound(parse(text), trips=trips, traffic=traffic, **arguments).microseconds)  # type: ignore[arg-type]


def test_a_block_in_a_loop_counts_as_often_as_it_is_passed() -> None:
    assert list(passes(parse(LOOP), (16,)).values()) == [1, 16, 1]


def test_times_are_instructions_over_what_a_clock_does() -> None:
    # In each of 4 warps 10 passes of one reciprocal, of which a multiprocessor does half a warp's in a clock.
    assert of(LOOP, (10,), 0)["xu"] == pytest.approx(4 * 10 * 2 / 1.98e9 * 1e6)
    assert of(LOOP, (10,), 4.8e12)["dram"] == pytest.approx(1e6)


def test_rounds_that_were_made_one_are_passed_as_often_less() -> None:
    assert list(passes(parse(UNROLLED), (64,)).values()) == [1, 16, 1, 1]


def test_other_loops_than_those_declared_are_told() -> None:
    with pytest.raises(ValueError, match="2 loops are declared, the code has 1, of 4 instructions"):
        passes(parse(LOOP), (2, 3))


def test_code_that_was_unrolled_as_a_whole_needs_no_counts() -> None:
    assert list(passes(parse(COPY), (8,)).values()) == [1]


def test_a_kernel_for_memory_that_is_busy_otherwise_is_told() -> None:
    slow = bound(parse(LOOP), 90, 4, 132, (1000,), 10_000, 0, "")
    assert slow.limit == "lsu"
    assert {"lsu", "xu"} <= too_busy(slow).keys()
    assert too_busy(bound(parse(LOOP), 90, 4, 132, (1000,), 100_000_000, 0, "")) == {}


def test_a_kernel_for_products_may_be_busy() -> None:
    text = product("QGMMA.64x128x32.F32.E4M3.E4M3 R24, gdesc[UR8], R24")
    busy = bound(parse(text), 90, 4, 132, (1000,), 10_000, 1e12, "fp8")
    assert busy.limit == "tensor"
    assert too_busy(busy) == {}


@pytest.mark.parametrize(
    ("name", "pipe", "held"),
    [
        ("FFMA", "fp32", 0.25),
        ("IMAD.MOV.U32", "fp32", 0.5),
        ("PRMT", "alu", 0.5),
        ("MUFU.EX2", "xu", 2),
        ("LDG.E", "lsu", 1),
        ("LDG.E.128", "lsu", 4),
        ("LDSM.16.M88.4", "lsu", 4),
        ("SHFL.BFLY", "lsu", 1),
        ("UIADD3", "", 0),
        ("QGMMA.64x128x32.F32.E4M3.E4M3", "", 0),
    ],
)
def test_an_instruction_holds_its_pipe(name: str, pipe: str, held: float) -> None:
    assert clocks(Instruction(name), rates(90)) == (pipe, held)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_architecture_has_rates(architecture: int) -> None:
    rate = rates(architecture)
    assert rate["lanes"].keys() == rates(90)["lanes"].keys()
    # The data sheets' peaks, within a tenth: A100, L40S, H100 and H200, B200.
    peak = {80: 312e12, 89: 362e12, 90: 989e12, 100: 2250e12}[architecture]
    assert rate["tensor"]["half"] * rate["multiprocessors"] * rate["clock"] == pytest.approx(peak, rel=0.1)
