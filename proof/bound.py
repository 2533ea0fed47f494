"""How long a kernel takes at least: what its instructions ask of each pipe, and its bytes of DRAM.

A bound, not a forecast: latencies, waves that are not full, and what waits for what are left out. It is good for one
question: whether a kernel that ought to wait for memory has time for its arithmetic meanwhile.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from proof.sass import Code, Instruction, Loop

_THREADS: Final = 32  # of a warp
BUSY: Final = 0.7
"""How much of the time in DRAM any other pipe may take."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What limits a kernel.

    Args:
        microseconds: of each pipe, "dram" among them.
        trips: how often each block that is executed is passed, by one warp.
    """

    microseconds: Mapping[str, float]
    trips: Mapping[int, float]

    @property
    def limit(self) -> str:
        """The pipe that takes longest."""
        return max(self.microseconds, key=lambda pipe: self.microseconds[pipe])

    @property
    def total(self) -> float:
        """Microseconds of that pipe."""
        return self.microseconds[self.limit]

    @property
    def for_memory(self) -> bool:
        """Whether it ought to wait for memory: its products take less time than its bytes."""
        return self.microseconds["dram"] > self.microseconds["tensor"]

    def too_busy(self) -> dict[str, float]:
        """Pipes of a kernel that ought to wait for memory which take too long → their share of the time in DRAM."""
        dram = self.microseconds["dram"]
        if not self.for_memory:
            return {}
        shares = {pipe: time / dram for pipe, time in self.microseconds.items() if pipe != "dram"}
        return {pipe: share for pipe, share in shares.items() if share > BUSY}


@cache
def _table() -> Mapping[str, Any]:
    table: Mapping[str, Any] = json.loads(Path(__file__).with_name("rates.json").read_text(encoding="utf-8"))
    return table


def rates(architecture: int) -> Mapping[str, Any]:
    """What a multiprocessor of this architecture does in a clock, and how many a GPU of it has."""
    rate: Mapping[str, Any] = _table()[str(architecture)]
    return rate


@cache
def _class_of() -> Mapping[str, str]:
    classes: Mapping[str, str] = _table()["instructions"]
    return {opcode: name for name, opcodes in classes.items() for opcode in opcodes.split()}


def clocks(instruction: Instruction, rate: Mapping[str, Any]) -> tuple[str, float]:
    """The pipe of an instruction beside that which issues it, and how long one warp's holds it, in clocks.

    Pipes are those of `rates.json`; "" for instructions that are only issued. Multiply-adds of integers run where those
    of floating-point numbers do.
    """
    kind = _class_of().get(instruction.opcode)
    if kind is None:
        return "", 0.0
    held = _THREADS / rate["lanes"][kind]
    if kind == "lsu":
        held = max(held, _THREADS * _bytes(instruction) / rate["lsu_bytes"])
    return _table()["pipes"][kind], held


def _bytes(instruction: Instruction) -> int:
    """That one thread moves."""
    if instruction.opcode in ("LDSM", "STSM"):
        matrices = instruction.name.rsplit(".", 1)[1]
        return 4 * int(matrices) if matrices.isdigit() else 4
    return 4 if instruction.opcode == "SHFL" else instruction.bits // 8


def passes(code: Code, trips: Sequence[float]) -> dict[int, float]:
    """How often a warp passes each block that is executed.

    Args:
        trips: of each loop of the source, in order. A loop that the compiler unrolled into two, many rounds at once and
            then those that are left, stands for one.

    Raises:
        ValueError: there are other loops than that.
    """
    counts = dict(_matched(code, trips))
    result = {}
    for block in code.executed:
        times = 1.0
        for loop, count in counts.items():
            if block in loop.body:
                times *= count
        result[block] = times
    return result


def _matched(code: Code, trips: Sequence[float]) -> list[tuple[Loop, float]]:
    loops = [(loop, 1) for loop in code.loops]
    if not loops:
        # Unrolled as a whole.
        return []
    while len(loops) > len(trips):
        at = next((at for at in range(len(loops) - 1) if _unrolled(code, loops[at][0], loops[at + 1][0]) > 1), None)
        if at is None:
            break
        # The loop of what is left runs less than once in as many rounds as the other does at once.
        rounds = _unrolled(code, loops[at][0], loops.pop(at + 1)[0])
        loops[at] = (loops[at][0], rounds)
    if len(loops) != len(trips):
        sizes = ", ".join(str(sum(1 for _ in code.instructions(loop.body))) for loop, _ in loops)
        raise ValueError(f"{len(trips)} loops are declared, the code has {len(loops)}, of {sizes} instructions")
    return [(loop, count / rounds) for (loop, rounds), count in zip(loops, trips, strict=True)]


def _unrolled(code: Code, many: Loop, left: Loop) -> int:
    """How many rounds of one loop the other does at once; 1 if it is another loop."""
    if many.body & left.body:
        return 1
    first, second = (_work(code, loop) for loop in (many, left))
    if not second or first.keys() != second.keys():
        return 1
    ratios = {first[name] / second[name] for name in second}
    ratio = ratios.pop()
    return int(ratio) if not ratios and ratio == int(ratio) else 1


def _work(code: Code, loop: Loop) -> Counter[str]:
    """What no compiler adds or leaves out: accesses of global memory and products."""
    names = (each for each in code.instructions(loop.body))
    return Counter(each.opcode for each in names if each.opcode in ("LDG", "STG", "LDGSTS", "RED") or is_matrix(each))


def is_matrix(instruction: Instruction) -> bool:
    """Whether it is one of the tensor cores'."""
    return instruction.opcode.endswith("MMA")


def bound(
    code: Code,
    architecture: int,
    warps: int,
    programs: int,
    trips: Sequence[float],
    traffic: float,
    flops: float,
    kind: str,
) -> Bound:
    """The bound of one launch.

    Args:
        warps: of a program.
        trips: of the loops of the source.
        traffic: bytes through DRAM, of all programs.
        flops: of matrix products of `kind` ("fp8", "half", "int8"), of all programs.

    Raises:
        ValueError: the code has other loops.
    """
    rate = rates(architecture)
    times = passes(code, trips)
    held: Counter[str] = Counter()
    for block, often in times.items():
        for instruction in code.blocks[block].instructions:
            pipe, clock = clocks(instruction, rate)
            held["issue"] += often / rate["issue"]
            held[pipe] += often * clock
    factor = warps * programs / rate["multiprocessors"] / rate["clock"] * 1e6
    microseconds = {pipe: held[pipe] * factor for pipe in ("issue", "fp32", "alu", "xu", "lsu")}
    peak = rate["tensor"].get(kind, 1) * rate["multiprocessors"] * rate["clock"]
    microseconds["tensor"] = flops / peak * 1e6 if flops else 0.0
    microseconds["dram"] = traffic / rate["dram"] * 1e6
    return Bound(microseconds, times)
