"""Many layer names as few: `model.layers.{0..31}.self_attn.q_proj`. What is printed is a pattern that reaches them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from policyquant.inventory.layers import INDEX, Indices, NameForm
from policyquant.plan.ranges import Ranges, from_positions
from policyquant.plan.units import Unit


def spans(form: NameForm, members: Sequence[Indices]) -> list[str]:
    """The names of `members`, repeated ones written as index ranges."""
    if not form.positions:
        return [escape(form.template)]
    values = sorted({tuple(m[p] - o for p, o in zip(form.positions, form.offsets, strict=True)) for m in members})
    return [_fill(form.template, box) for box in _boxes(values)]


def unit_spans(unit: Unit, ranges: Ranges, *, layer: bool = False) -> list[str]:
    """The checkpoint names of members of a unit (`layer`: of the layers they belong to) as spans."""
    if layer or not unit.part.names.get("checkpoint"):
        members = [unit.layer.indices[i] for start, stop in unit.layer_ranges(ranges) for i in range(start, stop)]
        return spans(unit.layer.names["checkpoint"][0], members)
    members = [unit.indices[i] for start, stop in ranges for i in range(start, stop)]
    return spans(unit.part.names["checkpoint"][0], members)


def _boxes(values: Sequence[Indices]) -> list[list[list[int]]]:
    """Index tuples as products of value lists, one per index: exact, and few for what occurs in models."""
    width = len(values[0])
    if width == 1:
        return [[[v for (v,) in values]]]
    by_rest: dict[tuple[Indices, ...], list[int]] = {}
    rests: dict[int, list[Indices]] = {}
    for first, *rest in values:
        rests.setdefault(first, []).append(tuple(rest))
    for first, rest_of in rests.items():
        by_rest.setdefault(tuple(rest_of), []).append(first)
    return [[firsts, *box] for rest_values, firsts in by_rest.items() for box in _boxes(rest_values)]


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
