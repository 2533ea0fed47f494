"""The checks of machine code fail where they should."""

from __future__ import annotations

import pytest

from proof.case import Kernel, Matrix
from proof.check import findings
from proof.sass import parse
from tests.proof.listing import BYTES, COPY, SPILLING, product

QGMMA = "QGMMA.64x128x32.F32.E4M3.E4M3 R24, gdesc[UR8], R24"
HMMA = "HMMA.16816.F32 R4, R8, R12, R4"


def check(text: str, kernel: Kernel, architecture: int = 90, aligned: bool = True, stack: int = 0) -> dict[str, str]:
    return findings(parse(text), stack, kernel, architecture, aligned)


def test_a_wide_copy_is_as_expected() -> None:
    assert check(COPY, Kernel(bytes=1)) == {}


def test_a_kernel_that_goes_by_local_memory_spills() -> None:
    assert check(SPILLING, Kernel(bytes=1)) == {"spills": "0 bytes of stack, 2 accesses of local memory"}


def test_a_stack_is_a_spill_too() -> None:
    assert "spills" in check(COPY, Kernel(bytes=1), stack=8)


def test_bytes_are_no_bulk_loads_and_no_bulk_stores() -> None:
    assert check(BYTES, Kernel(bytes=1)) == {
        "loads": "1 LDG.E.U8, at most 0 below 128 bits",
        "stores": "1 STG.E.U8, at most 0 below 64 bits",
    }


def test_scales_may_be_narrow_but_something_must_be_wide() -> None:
    found = check(BYTES, Kernel(bytes=1, narrow_loads=1, narrow_stores=1))
    assert found == {"loads": "none of 128 bits"}


def test_a_kernel_that_is_not_aligned_may_load_bytes() -> None:
    assert check(BYTES, Kernel(bytes=1), aligned=False) == {}


def test_products_of_fp8_by_the_instruction_for_halves_are_a_fault() -> None:
    found = check(product(HMMA), Kernel(bytes=1, matrix="fp8"))
    assert found == {"matrix": "HMMA, expected QGMMA"}


@pytest.mark.parametrize(("architecture", "opcode"), [(89, "QMMA"), (90, "QGMMA"), (100, "UTCQMMA")])
def test_each_architecture_has_its_own_instruction_for_fp8(architecture: int, opcode: str) -> None:
    for expected in (89, 90, 100):
        found = check(product(f"{opcode}.X R0"), Kernel(bytes=1, matrix="fp8"), expected)
        assert ("matrix" in found) == (expected != architecture)


@pytest.mark.parametrize(("matrix", "opcode"), [("half", "HGMMA"), ("half", "HMMA"), ("int8", "IMMA")])
def test_other_products_have_theirs(matrix: Matrix, opcode: str) -> None:
    assert check(product(f"{opcode}.X R0"), Kernel(bytes=1, matrix=matrix)) == {}
    assert "matrix" in check(product(QGMMA), Kernel(bytes=1, matrix=matrix))


def test_products_without_a_matrix_instruction_are_a_fault() -> None:
    assert check(COPY, Kernel(bytes=1, matrix="fp8")) == {"matrix": "no matrix instruction, expected QGMMA"}


def test_a_matrix_instruction_must_be_declared() -> None:
    assert check(product(QGMMA), Kernel(bytes=1)) == {"matrix": "QGMMA, expected none"}


def test_sums_that_stay_in_the_tensor_cores_are_not_promoted() -> None:
    kernel = Kernel(bytes=1, matrix="fp8", promotion=True)
    assert check(product(QGMMA), kernel) == {}
    assert "promotion" in check(product(QGMMA, additions=0), kernel)
