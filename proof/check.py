"""Whether the machine code of a kernel is what its case expects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from proof.bound import BUSY, Bound, is_matrix
from proof.case import Kernel
from proof.sass import Code, Instruction

MATRIX: Final[Mapping[str, frozenset[str]]] = {
    "fp8": frozenset(("QMMA", "QGMMA", "UTCQMMA")),
    "half": frozenset(("HMMA", "HGMMA", "UTCHMMA")),
    "int8": frozenset(("IMMA", "IGMMA", "UTCIMMA")),
}
"""What is multiplied → the instructions for it: of 8.9 and before, of 9.0, of 10.0."""

_NEWEST: Final = {89: "QMMA", 90: "QGMMA", 100: "UTCQMMA"}
"""FP8's own: older ones run at the older one's rate."""
_BULK_COPIES: Final = ("UTMALDG", "UBLKCP")
_FEWEST_ADDITIONS: Final = 4


def findings(code: Code, stack: int, kernel: Kernel, architecture: int, aligned: bool) -> dict[str, str]:
    """What is wrong → how it shows; the keys are those that `Kernel.waivers` has.

    Args:
        stack: bytes of a thread.
        aligned: whether loads and stores must be wide.
    """
    found = dict(_spills(code, stack))
    found.update(_products(code, kernel, architecture))
    if aligned:
        found.update(_narrow(code, kernel))
    return found


def too_busy(bound: Bound) -> dict[str, str]:
    """The same of the predicted times."""
    text = f"{{:.0%}} of the time in DRAM, at most {BUSY:.0%}"
    return {pipe: text.format(share) for pipe, share in bound.too_busy().items()}


def _spills(code: Code, stack: int) -> Iterator[tuple[str, str]]:
    local = sum(each.opcode in ("LDL", "STL") for block in code.blocks for each in block.instructions)
    if stack or local:
        yield "spills", f"{stack} bytes of stack, {local} accesses of local memory"


def _products(code: Code, kernel: Kernel, architecture: int) -> Iterator[tuple[str, str]]:
    used = Counter(each.opcode for each in code.instructions() if is_matrix(each))
    listed = ", ".join(sorted(used)) or "no matrix instruction"
    if kernel.matrix is None:
        if used:
            yield "matrix", f"{listed}, expected none"
        return
    wanted = frozenset((_NEWEST[architecture],)) if kernel.matrix == "fp8" else MATRIX[kernel.matrix]
    if not used or not wanted.issuperset(used):
        yield "matrix", f"{listed}, expected {' or '.join(sorted(wanted))}"
    if kernel.promotion and used:
        additions = _additions(code)
        if additions < _FEWEST_ADDITIONS:
            yield "promotion", f"{additions} additions of float32 beside the matrix instructions"


def _additions(code: Code) -> int:
    """Additions in the smallest loop that has matrix instructions; in all code if none has."""
    bodies = [loop.body for loop in code.loops if any(is_matrix(each) for each in code.instructions(loop.body))]
    where = min(bodies, key=len) if bodies else None
    count = Counter(each.opcode for each in code.instructions(where))
    return count["FADD"] + count["FFMA"] + 2 * (count["FADD2"] + count["FFMA2"])


def _narrow(code: Code, kernel: Kernel) -> Iterator[tuple[str, str]]:
    instructions = tuple(code.instructions())
    loads = Counter(each.name for each in instructions if _loads(each) and each.bits < 128)
    stores = Counter(each.name for each in instructions if each.opcode == "STG" and each.bits < 64)
    wide = any((_loads(each) and each.bits >= 128) or each.opcode in _BULK_COPIES for each in instructions)
    if loads.total() > kernel.narrow_loads:
        yield "loads", f"{_listed(loads)}, at most {kernel.narrow_loads} below 128 bits"
    elif not wide:
        yield "loads", "none of 128 bits"
    if stores.total() > kernel.narrow_stores:
        yield "stores", f"{_listed(stores)}, at most {kernel.narrow_stores} below 64 bits"


def _loads(instruction: Instruction) -> bool:
    return instruction.opcode in ("LDG", "LDGSTS")


def _listed(names: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(names.items()))
