"""Short machine code as nvdisasm prints it."""

from __future__ import annotations


def listing(code: str) -> str:
    """Of lines that are an instruction or a label: with addresses, as in a whole listing."""
    lines, address = ["\t.target\tsm_90a", "kernel:", ".text.kernel:"], 0
    for line in code.strip().splitlines():
        if line.strip().endswith(":"):
            lines.append(line.strip())
        else:
            lines.append(f"        /*{address:04x}*/                   {line.strip()} ;")
            address += 16
    return "\n".join([*lines, ".L_x_99:", f"        /*{address:04x}*/   BRA `(.L_x_99);"])


COPY = listing("""
    S2R R0, SR_TID.X
    @!P0 LDG.E.128 R4, desc[UR4][R2.64]
    @!P0 STG.E.128 desc[UR4][R6.64], R4
    EXIT
""")
"""Sixteen bytes of each thread."""

BYTES = listing("""
    S2R R0, SR_TID.X
    LDG.E.U8 R4, desc[UR4][R2.64]
    STG.E.U8 desc[UR4][R6.64], R4
    EXIT
""")
"""One byte of each thread: what becomes of a copy whose alignment is not known."""

SPILLING = listing("""
    LDG.E.128 R4, desc[UR4][R2.64]
    STL [R1], R4
    LDL R5, [R1]
    STG.E.128 desc[UR4][R6.64], R4
    EXIT
""")
"""A value goes by local memory."""

LOOP = listing("""
    MOV R0, RZ
.L_x_0:
    LDG.E.128 R4, desc[UR4][R2.64]
    FADD R8, R8, R4
    MUFU.RCP R9, R8
    @!P1 BRA `(.L_x_0)
    STG.E.128 desc[UR4][R6.64], R8
    EXIT
""")
"""One loop over a row."""

DIVISION = listing("""
    MUFU.RCP R3, R2
    FCHK P0, R4, R2
    @!P0 BRA `(.L_x_1)
    MOV R8, 0x60
    CALL.REL.NOINC `($__internal_0_$__cuda_sm3x_div_rn_noftz_f32_slowpath)
    MOV R5, R9
.L_x_1:
    STG.E.64 desc[UR4][R6.64], R8
    EXIT
$__internal_0_$__cuda_sm3x_div_rn_noftz_f32_slowpath:
    MUFU.RCP R9, R2
    RET.REL.NODEC R8 `(kernel)
""")
"""A division with IEEE rounding: a subroutine takes operands that are out of the ordinary."""

BRANCH_BY_CALL = listing("""
    MOV R0, RZ
.L_x_0:
    LDG.E.128 R4, desc[UR4][R2.64]
    @P5 CALL.REL.NOINC `(.L_x_1)
    BRA `(.L_x_0)
.L_x_1:
    STG.E.128 desc[UR4][R6.64], R4
    EXIT
""")
"""A loop that ends by a call, as ptxas 12 writes it."""

WAITING = listing("""
    SYNCS.EXCH.64 URZ, [UR4], UR6
.L_x_0:
    SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R2
    @!P0 BRA `(.L_x_0)
    EXIT
""")
"""A loop that waits for a barrier."""

UNROLLED = listing("""
    MOV R0, RZ
.L_x_0:
    LDG.E.128 R4, desc[UR4][R2.64]
    LDG.E.128 R8, desc[UR4][R2.64+0x10]
    LDG.E.128 R12, desc[UR4][R2.64+0x20]
    LDG.E.128 R16, desc[UR4][R2.64+0x30]
    @!P1 BRA `(.L_x_0)
.L_x_1:
    LDG.E.128 R4, desc[UR4][R2.64]
    @!P1 BRA `(.L_x_1)
    EXIT
""")
"""A loop of which four rounds were made one, and one for those that are left."""


def product(matrix: str, additions: int = 8) -> str:
    """A loop of products, whose sums are added up outside the tensor cores."""
    lines = ["LDGSTS.E.BYPASS.128 [R2], desc[UR4][R2.64]", ".L_x_0:", *[matrix] * 4]
    lines += ["FADD R8, R8, R4"] * additions
    return listing("\n".join([*lines, "@!P1 BRA `(.L_x_0)", "STG.E.128 desc[UR4][R6.64], R8", "EXIT"]))
