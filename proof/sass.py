"""Machine code as nvdisasm prints it: instructions, basic blocks, loops, and which blocks are executed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

_LABEL = re.compile(r"^(\.L_x_\d+|\$[\w$.]+|[A-Za-z_][\w$.]*):$")
_INSTRUCTION = re.compile(r"^/\*[0-9a-f]{4,}\*/\s+(?:@(!?U?P[T\d]+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
_TARGET = re.compile(r"`\((\.L_x_\d+)\)")
_LEAVES = ("EXIT", "RET", "BRX", "JMX", "BPT")
_WIDTHS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128, "256": 256}


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Args:
        name: with its modifiers: "LDG.E.128".
        operands: as printed.
        predicate: "P0", "!P0", or "" if it is always executed.
    """

    name: str
    operands: str = ""
    predicate: str = ""

    @property
    def opcode(self) -> str:
        """The name without modifiers."""
        return self.name.split(".", 1)[0]

    @property
    def bits(self) -> int:
        """How much of memory one thread reads or writes; of instructions that do."""
        return next((_WIDTHS[each] for each in self.name.split(".")[1:] if each in _WIDTHS), 32)

    @property
    def target(self) -> str | None:
        """The label that it branches to. The assembler also writes `CALL` for a branch, of which no one returns."""
        if self.opcode not in ("BRA", "CALL"):
            return None
        found = _TARGET.search(self.operands)
        return None if found is None else found[1]


@dataclass(slots=True)
class Block:
    """Instructions that are executed one after the other, entered at the first only.

    Args:
        labels: names of its beginning.
        successors: numbers of the blocks that may follow.
    """

    labels: tuple[str, ...]
    instructions: list[Instruction] = field(default_factory=list)
    successors: list[int] = field(default_factory=list)

    @property
    def rare(self) -> bool:
        """Whether it calls a subroutine: the way of a division whose operands are out of the ordinary."""
        return any(each.opcode == "CALL" and each.target is None for each in self.instructions)


@dataclass(frozen=True, slots=True)
class Loop:
    """A natural loop.

    Args:
        head: the block that it is entered by.
        body: all its blocks, those of inner loops included.
    """

    head: int
    body: frozenset[int]


@dataclass(frozen=True)
class Code:
    """The blocks of a kernel, in the order of their addresses; execution begins with the first."""

    blocks: tuple[Block, ...]

    @cached_property
    def executed(self) -> tuple[int, ...]:
        """The blocks that are reached without calls. Of both ways of a branch, both are taken for executed."""
        seen, waiting = {0}, [0]
        while waiting:
            for follower in self.blocks[waiting.pop()].successors:
                if follower not in seen and not self.blocks[follower].rare:
                    seen.add(follower)
                    waiting.append(follower)
        return tuple(sorted(seen))

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        """Loops that do work, in the order of their heads; those that wait for a barrier do none."""
        dominators = self._dominators()
        bodies: dict[int, set[int]] = {}
        before = self._predecessors()
        for tail in self.executed:
            for head in self.blocks[tail].successors:
                if head in dominators[tail]:
                    bodies.setdefault(head, set()).update(_between(head, tail, before))
        loops = (Loop(head, frozenset(body)) for head, body in sorted(bodies.items()))
        return tuple(loop for loop in loops if not self._waits(loop))

    def _predecessors(self) -> dict[int, set[int]]:
        before: dict[int, set[int]] = {each: set() for each in self.executed}
        for each in self.executed:
            for follower in self.blocks[each].successors:
                if follower in before:
                    before[follower].add(each)
        return before

    def _dominators(self) -> dict[int, set[int]]:
        before = self._predecessors()
        everything = set(self.executed)
        dominators = {each: {0} if each == 0 else set(everything) for each in everything}
        changed = True
        while changed:
            changed = False
            for each in self.executed[1:]:
                new = {each} | set.intersection(*(dominators[one] for one in before[each]))
                if new != dominators[each]:
                    dominators[each], changed = new, True
        return dominators

    def _waits(self, loop: Loop) -> bool:
        """A loop without arithmetic that asks a barrier or a flag in memory."""
        names = Counter(each.opcode for block in loop.body for each in self.blocks[block].instructions)
        return names.total() <= 12 and any(names[each] for each in ("SYNCS", "NANOSLEEP", "YIELD", "ATOMS"))

    def instructions(self, blocks: Iterable[int] | None = None) -> Iterator[Instruction]:
        """Of these blocks, or of all that are executed."""
        for block in self.executed if blocks is None else sorted(blocks):
            yield from self.blocks[block].instructions


def _between(head: int, tail: int, before: dict[int, set[int]]) -> set[int]:
    body, waiting = {head, tail}, [tail] if tail != head else []
    while waiting:
        for each in before[waiting.pop()]:
            if each not in body:
                body.add(each)
                waiting.append(each)
    return body


def parse(text: str) -> Code:
    """Code from what `nvdisasm -c` prints of a cubin with one kernel.

    Raises:
        ValueError: there are no instructions in it.
    """
    blocks, labels = [], []
    block: Block | None = None
    for line in text.splitlines():
        line = line.strip()
        label = _LABEL.match(line)
        if label is not None:
            labels.append(label[1])
            block = None
            continue
        found = _INSTRUCTION.match(line)
        if found is None:
            continue
        instruction = Instruction(found[2], found[3], found[1] or "")
        if instruction.opcode == "NOP":
            continue
        if block is None:
            block = Block(tuple(labels))
            blocks.append(block)
            labels = []
        block.instructions.append(instruction)
        if instruction.target is not None or instruction.opcode in _LEAVES:
            block = None
    if not blocks:
        raise ValueError("no instructions were found")
    _connect(blocks)
    return Code(tuple(blocks))


def _connect(blocks: list[Block]) -> None:
    at = {label: number for number, block in enumerate(blocks) for label in block.labels}
    for number, block in enumerate(blocks):
        last = block.instructions[-1]
        if last.name == "BRA.DIV":
            # For warps whose threads went different ways; those that stay together go on.
            block.successors.append(number + 1)
            continue
        # `BRA UP0, label` and `BRA.U` have conditions among their operands.
        always = not last.predicate and not re.match(r"(!?U?P\d|~?UR?\d+|[RU]\w+)\s*,", last.operands)
        if last.target in at:
            block.successors.append(at[last.target])
        ends = always and (last.target is not None or last.opcode in _LEAVES)
        if not ends and number + 1 < len(blocks):
            block.successors.append(number + 1)
