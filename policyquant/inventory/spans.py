"""Many layer names as few: `model.layers.{0..31}.self_attn.q_proj`. What is printed is a pattern that reaches them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from math import prod
from typing import Final

from policyquant.inventory.echo import name_shown
from policyquant.inventory.index_tree import Box, IndexTree
from policyquant.inventory.layers import INDEX, Indices, NameForm
from policyquant.inventory.ranges import from_positions


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
    return [(fill_box(form.template, box), prod(map(len, box))) for box in tree.boxes(((0, tree.count),))]


_LISTED: Final = 5
"""How many names a message lists before it says how many more there are."""


def listed(names: Sequence[str]) -> str:
    """`a, b and 3 more`: names for a message, however many they are."""
    shown = ", ".join(name_shown(name) for name in names[:_LISTED])
    return f"{shown} and {len(names) - _LISTED} more" if len(names) > _LISTED else shown


def fill_box(template: str, box: Box) -> str:
    """A name template with the values of a box in the place of its indices."""
    pieces = [escape(piece) for piece in template.split(INDEX)]
    numbers = [*(index_ranges(values) for values in box), ""]
    return "".join(piece + number for piece, number in zip(pieces, numbers, strict=True))


def index_ranges(values: Iterable[int]) -> str:
    """`3`, `{0..31}` or `{0,4..7}`: the values that an index takes."""
    runs = from_positions(sorted(values))
    texts = [str(start) if stop == start + 1 else f"{start}..{stop - 1}" for start, stop in runs]
    return texts[0] if len(texts) == 1 and ".." not in texts[0] else "{" + ",".join(texts) + "}"


_SPECIAL = re.compile(r"[*?\[\]{}\\]")


def escape(name: str) -> str:
    """A name as a pattern that matches it alone."""
    return _SPECIAL.sub(lambda match: "\\" + match.group(), name)
