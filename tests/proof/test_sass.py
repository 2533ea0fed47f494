"""Machine code is divided into blocks and loops, and what is hardly ever executed is told from the rest."""

from __future__ import annotations

import pytest

from proof.sass import Code, Instruction, parse
from tests.proof.listing import BRANCH_BY_CALL, COPY, DIVISION, LOOP, UNROLLED, WAITING, listing


def names(code: Code) -> list[str]:
    return [each.name for each in code.instructions()]


def test_an_instruction_has_a_name_operands_and_a_predicate() -> None:
    load = parse(COPY).blocks[0].instructions[1]
    assert load == Instruction("LDG.E.128", "R4, desc[UR4][R2.64]", "!P0")
    assert load.opcode == "LDG"


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("LDG.E", 32),
        ("LDG.E.U8", 8),
        ("STG.E.U16", 16),
        ("LDG.E.64", 64),
        ("LDG.E.128.CONSTANT", 128),
        ("LDG.E.ENL2.256", 256),
        ("LDGSTS.E.BYPASS.LTC128B.128", 128),
    ],
)
def test_the_width_of_an_access_is_among_its_modifiers(name: str, bits: int) -> None:
    assert Instruction(name).bits == bits


def test_what_stands_behind_the_end_is_not_executed() -> None:
    assert names(parse(COPY)) == ["S2R", "LDG.E.128", "STG.E.128", "EXIT"]


def test_the_slow_way_of_a_division_is_not_counted() -> None:
    assert names(parse(DIVISION)) == ["MUFU.RCP", "FCHK", "BRA", "STG.E.64", "EXIT"]


def test_a_loop_is_a_branch_back_to_what_must_come_before_it() -> None:
    (loop,) = parse(LOOP).loops
    assert [each.name for each in parse(LOOP).instructions(loop.body)] == ["LDG.E.128", "FADD", "MUFU.RCP", "BRA"]


def test_a_branch_that_is_written_as_a_call_is_followed() -> None:
    code = parse(BRANCH_BY_CALL)
    assert names(code).count("STG.E.128") == 1
    assert len(code.loops) == 1


def test_a_loop_that_waits_for_a_barrier_does_no_work() -> None:
    assert parse(WAITING).loops == ()


def test_two_loops_after_each_other_are_two() -> None:
    assert [loop.head for loop in parse(UNROLLED).loops] == [1, 2]


def test_text_without_instructions_is_refused() -> None:
    with pytest.raises(ValueError, match="no instructions"):
        parse("cuobjdump: no such file")


def test_warps_that_stay_together_do_not_branch_where_others_would() -> None:
    code = parse(
        listing("""
            BRA.DIV ~URZ, `(.L_x_1)
            SHFL.BFLY PT, R1, R0, 0x1, 0x1f
        .L_x_0:
            EXIT
        .L_x_1:
            WARPSYNC R2
            BRA `(.L_x_0)
        """)
    )
    assert code.executed == (0, 1, 2)
