"""Folds the tensors of a model into sets of layers that differ in their indices only.

This is the one pass over all tensor names (139,583 in Kimi-K2), so it splits each name once at its last dot and folds
each distinct parent module once; no regular expression is involved.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Final

from policyquant.errors import SourceError
from policyquant.inventory.echo import quoted
from policyquant.inventory.layers import INDEX, Indices, StoredSet, StoredTensor

Tensor = tuple[str, str | None, tuple[int, ...] | None]
"""Name, dtype as safetensors spells it, shape."""


MOST_PARTS: Final = 64
"""Names are folded by recursion on their parents; no real module tree is a tenth as deep."""

MOST_INDEX: Final = 10**9
"""No index reaches it: a longer number in a name is not one."""

_COST_OF_ENTRY = 200
"""Bytes of a remembered name besides its own text, about."""

_MOST_CHARACTERS = 128 * 1024 * 1024
"""Of remembered names, that cost counted. Kimi-K2 takes 20 MiB."""


class Templates(dict[str, tuple[str, Indices]]):
    """Module name → its template and indices, computed once per distinct module through its parent.

    Forgets what it knows when that grows beyond what any model needs: every prefix of every name is kept, and names
    made for it could turn 100 MB of text into many GB.
    """

    def __init__(self) -> None:
        super().__init__()
        self._characters = 0

    def __missing__(self, name: str) -> tuple[str, Indices]:
        if name.count(".") >= MOST_PARTS:
            raise SourceError(f"a name of more than {MOST_PARTS} parts: {quoted(name)}")
        parent, dot, last = name.rpartition(".")
        template, indices = self[parent] if dot else ("", ())
        if is_index(last):
            result = (f"{template}{dot}{INDEX}", (*indices, int(last)))
        elif INDEX in last:
            raise _kept_for_indices(name)
        else:
            result = (f"{template}{dot}{last}", indices)
        self._characters += len(name) + _COST_OF_ENTRY
        if self._characters > _MOST_CHARACTERS:
            self.clear()
            self._characters = 0
        self[name] = result
        return result


def is_index(part: str) -> bool:
    """Whether a dotted part is an index: a decimal number without leading zeros, as `nn.ModuleList` writes it,
    below `MOST_INDEX`."""
    return part.isdecimal() and part.isascii() and (part[0] != "0" or part == "0") and len(part) <= 9


def template_of(name: str) -> tuple[str, Indices]:
    """`("model.layers.#.mlp", (3,))` for `model.layers.3.mlp`."""
    return Templates()[name]


def collapse(tensors: Iterable[Tensor]) -> tuple[StoredSet, ...]:
    """Fold tensors into sets, in the order in which their first tensors come.

    Raises:
        SourceError: a tensor's name holds `#` or has more than 64 parts, or two cannot be told apart.
    """
    signatures = _Signatures()
    step = signatures.step
    layers: dict[str, int] = {}
    get = layers.get
    for name, dtype, shape in tensors:
        layer, _, suffix = name.rpartition(".")
        layers[layer] = step[get(layer, 0), suffix, dtype, shape]

    modules = Templates()
    members: dict[tuple[str, str, int], list[Indices]] = {}
    for layer, signature in layers.items():
        parent, dot, last = layer.rpartition(".")
        if dot and last and not last.isdecimal():
            template, indices = modules[parent]
        else:
            template, indices = modules[layer]
            last = ""
        key = (template, last, signature)
        if key in members:
            members[key].append(indices)
        else:
            members[key] = [indices]

    # Two tensors of a layer may come in either order: the same set of tensors then has two signatures.
    sets: dict[tuple[str, tuple[StoredTensor, ...]], list[Indices]] = {}
    for (template, last, signature), indices_list in members.items():
        if INDEX in last:
            raise _kept_for_indices(f"{template}.{last}")
        name = f"{template}.{last}" if last else template
        sets.setdefault((name, signatures.tensors(signature)), []).extend(indices_list)
    return tuple(StoredSet(name, tuple(sorted(indices)), stored) for (name, stored), indices in sets.items())


class _Step(dict[tuple[int, str, str | None, tuple[int, ...] | None], int]):
    """(signature so far, next tensor) → signature. A number stands for the tensors a layer was seen to have."""

    def __init__(self, seen: list[tuple[int, StoredTensor]]) -> None:
        self._seen = seen

    def __missing__(self, key: tuple[int, str, str | None, tuple[int, ...] | None]) -> int:
        before, suffix, dtype, shape = key
        self._seen.append((before, StoredTensor(suffix, dtype, shape)))
        self[key] = number = len(self._seen) - 1
        return number


class _Signatures:
    def __init__(self) -> None:
        # A chain, not a tuple each: a module with 100,000 tensors must not cost the square of that.
        self._seen: list[tuple[int, StoredTensor]] = [(0, StoredTensor("", None, None))]
        self.step = _Step(self._seen)

    def tensors(self, signature: int) -> tuple[StoredTensor, ...]:
        found = []
        while signature:
            signature, tensor = self._seen[signature]
            found.append(tensor)
        found.sort(key=lambda tensor: tensor.suffix)
        for tensor, following in pairwise(found):
            if tensor.suffix == following.suffix:  # Names differ, so one of the two has nothing before its dot.
                raise SourceError(
                    f"the tensor names {quoted(tensor.suffix)} and {quoted('.' + tensor.suffix)} are one layer's"
                )
        return tuple(found)


def _kept_for_indices(name: str) -> SourceError:
    return SourceError(f"the name {quoted(name)} holds {INDEX!r}, which stands for indices here")
