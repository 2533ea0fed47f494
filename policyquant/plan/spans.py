"""Many layer names as few: `model.layers.{0..31}.self_attn.q_proj`. What is printed is a pattern that reaches them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import prod

from policyquant.inventory.layers import INDEX, Indices, NameForm
from policyquant.plan.index_tree import IndexTree
from policyquant.plan.ranges import Ranges, from_positions
from policyquant.plan.units import Unit


def spans(form: NameForm, members: Sequence[Indices]) -> list[str]:
    """The names of `members`, repeated ones written as index ranges."""
    return [text for text, _ in counted_spans(form, members)]


def counted_spans(form: NameForm, members: Sequence[Indices]) -> list[tuple[str, int]]:
    """The same, each with the number of names that it stands for."""
    if not form.positions:
        return [(escape(form.template), 1)]
    if any(form.offsets) or form.positions != tuple(range(len(members[0]))):
        pairs = tuple(zip(form.positions, form.offsets, strict=True))
        members = [tuple([m[p] - o for p, o in pairs]) for m in members]
    tree = IndexTree.of(sorted(set(members)))
    return [(_fill(form.template, box), prod(map(len, box))) for box in tree.boxes(((0, tree.count),))]


def unit_spans(unit: Unit, ranges: Ranges, *, layer: bool = False) -> list[str]:
    """The checkpoint names of members of a unit (`layer`: of the layers they belong to) as spans."""
    form = None if layer else next(iter(unit.part.names.get("checkpoint", ())), None)
    if form is None:
        members = [unit.layer.indices[i] for start, stop in unit.layer_ranges(ranges) for i in range(start, stop)]
        return spans(unit.layer.names["checkpoint"][0], members)
    if form.positions == tuple(range(len(unit.indices[0]))) and not any(form.offsets):
        return [_fill(form.template, box) for box in unit.tree.boxes(ranges)]
    return spans(form, [unit.indices[i] for start, stop in ranges for i in range(start, stop)])


def _fill(template: str, box: Sequence[Sequence[int]]) -> str:
    pieces = [escape(piece) for piece in template.split(INDEX)]
    numbers = [*(_numbers(values) for values in box), ""]
    return "".join(piece + number for piece, number in zip(pieces, numbers, strict=True))


def _numbers(values: Iterable[int]) -> str:
    runs = from_positions(sorted(values))
    texts = [str(start) if stop == start + 1 else f"{start}..{stop - 1}" for start, stop in runs]
    return texts[0] if len(texts) == 1 and ".." not in texts[0] else "{" + ",".join(texts) + "}"


_SPECIAL = re.compile(r"[*?\[\]{}\\]")


def escape(name: str) -> str:
    """A name as a pattern that matches it alone."""
    return _SPECIAL.sub(lambda match: "\\" + match.group(), name)
