"""From the name of a module's part to what a source stores for it.

A module may call its parts as the checkpoint does, as transformers' module tree does, or by canonical names; a caller's
`rename` comes before all of these. The first namespace that has a name decides.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from policyquant.errors import PolicyQuantError, SourceError
from policyquant.inventory.layers import NAMESPACES, Indices, LayerSet, NameForm, Namespace, Part

FUSED_PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
"""Names that stand for several layers → those, in the order in which their rows are stored when they are one."""


_MOST_PARTS: Final = 1_000_000
"""Each part has entries by name. A model of a trillion parameters has 100,000; a header can claim any number of experts
without values."""


class StoredPart(NamedTuple):
    """One part of one stored layer, or all of it."""

    layer: LayerSet
    indices: Indices
    part: Part | None
    """None: everything that the layer stores."""
    name: str
    """Checkpoint name of the layer, under which the plan has it."""
    expert: int | None = None
    """Which of its likes it is, for a part that repeats inside its layer."""

    @property
    def whole(self) -> bool:
        """Whether the layer stores nothing else."""
        return self.part is None or (len(self.layer.parts) == 1 and not self.part.repeats)

    @property
    def projection(self) -> str:
        """What it is among its fellows: `q_proj`, `up_proj`; empty for all that a layer stores, or if unknown."""
        return "" if self.part is None else self.part.role.rpartition(".")[2]

    def tensor_names(self, stored: Container[str]) -> Iterator[tuple[str, str]]:
        """Suffix and full name of each tensor of the layer; `stored` has the names that the source uses.

        A source may spell its layers as transformers' module tree does, and the layer's first name is the checkpoint's.
        """
        for tensor in self.layer.tensors:
            for name in self._spellings():
                full = f"{name}.{tensor.suffix}" if name else tensor.suffix
                if full in stored:
                    yield tensor.suffix, full
                    break

    def _spellings(self) -> Iterator[str]:
        yield self.name
        for namespace in ("checkpoint", "module"):
            for form in self.layer.names.get(namespace, ()):
                if form.own:
                    yield form.fill(self.indices)


class HasLayers(Protocol):
    """An inventory, or anything else that has its layers."""

    @property
    def sets(self) -> Sequence[LayerSet]: ...


class StoredNames:
    """All names under which a source's layers and their parts can be asked for."""

    def __init__(self, inventory: HasLayers, rename: Mapping[str, str] | None = None) -> None:
        """
        Raises:
            SourceError: there are more parts than any model has.
        """
        self._replacements = Renaming(rename)
        self._found: dict[str, StoredPart] = {}
        self._members: dict[str, list[StoredPart]] = {}
        self.renamed: dict[str, str] = {}
        """What `rename` made of checkpoint names, where it changed them."""
        self.collisions: list[str] = []
        """What `rename` made one name of, one sentence each."""
        self._activations: dict[str, list[StoredPart]] | None = None
        count = sum(len(layer.indices) * max(part.repeats, 1) for layer in inventory.sets for part in layer.parts)
        if count > _MOST_PARTS:
            raise SourceError(f"a source of {count:,} parts of layers; expected at most {_MOST_PARTS:,}")
        later: dict[str, list[StoredPart]] = {}
        for layer in inventory.sets:
            for indices in layer.indices:
                name = layer.name(indices)
                for part in layer.parts:
                    for expert in range(part.repeats) if part.repeats else (None,):
                        self._add(StoredPart(layer, indices, part, name, expert), part.names, later)
                if len(layer.parts) > 1 or layer.parts[0].repeats:
                    self._add(StoredPart(layer, indices, None, name), layer.names, later)
        for name, owners in later.items():
            if len(owners) == 1:
                self._found.setdefault(name, owners[0])
            elif name not in self._found:
                self._members.setdefault(name, owners)

    def _add(
        self,
        stored: StoredPart,
        names: Mapping[Namespace, tuple[NameForm, ...]],
        later: dict[str, list[StoredPart]],
    ) -> None:
        indices = stored.indices if stored.expert is None else (*stored.indices, stored.expert)
        for namespace in NAMESPACES:
            for form in names.get(namespace, ()):
                name = form.fill(indices)
                if namespace == "checkpoint":
                    name = self._renamed(name, stored)
                if not form.own:
                    if namespace != "canonical":
                        _append(self._members.setdefault(name, []), stored)
                elif namespace == "checkpoint":
                    other = self._found.setdefault(name, stored)
                    if other.name != stored.name and self.renamed and other.layer.tensors and stored.layer.tensors:
                        self.collisions.append(
                            f"rename makes {name!r} of both {other.name!r} and {stored.name!r}, which are two layers"
                        )
                else:
                    _append(later.setdefault(name, []), stored)

    def _renamed(self, name: str, stored: StoredPart) -> str:
        suffix = stored.layer.tensors[0].suffix if stored.layer.tensors else "weight"
        changed = self._replacements.layer(name, suffix)
        if changed != name:
            self.renamed[name] = changed
        return changed

    def find(self, name: str) -> StoredPart | None:
        """What is stored for a module, or a module's part, of this name."""
        return self._found.get(name)

    def members(self, name: str) -> list[StoredPart]:
        """What is stored one by one and goes by this name together, in the order in which it is stored fused: q, k
        and v, or gate and up, and these of one expert after another. Empty if the name stands for nothing whole."""
        found = self._members.get(name, [])
        order = FUSED_PARTS.get(name.rpartition(".")[2]) or tuple({each.projection: None for each in found})
        if len(found) < 2 or (len(order) > 1 and order not in FUSED_PARTS.values()):
            return []
        by_expert: dict[Indices, list[StoredPart]] = {}
        for stored in found:
            if stored.projection in order:
                indices = stored.indices if stored.expert is None else (*stored.indices, stored.expert)
                by_expert.setdefault(indices, []).append(stored)
        groups = [sorted(by_expert[key], key=lambda each: order.index(each.projection)) for key in sorted(by_expert)]
        if any(tuple(each.projection for each in group) != order for group in groups):
            return []
        return [stored for group in groups for stored in group]

    def activation_in(self, module: str) -> StoredPart | None:
        """The one activation layer that stands directly in a module; None if there is none, or more than one."""
        if self._activations is None:
            self._activations = {}
            for name, stored in self._found.items():
                if stored.layer.kind == "activation":
                    self._activations.setdefault(name.rpartition(".")[0], []).append(stored)
        here = {id(stored): stored for stored in self._activations.get(module, ())}
        return next(iter(here.values())) if len(here) == 1 else None

    def known(self) -> list[str]:
        """Every name that can be found."""
        return list(self._found)


def _append(owners: list[StoredPart], stored: StoredPart) -> None:
    """Namespaces may agree on a name, which is then given twice for one part."""
    if not owners or owners[-1] is not stored:
        owners.append(stored)


class Renaming:
    """A caller's `rename`: regular expressions over names of tensors → replacements, applied in order."""

    def __init__(self, rename: Mapping[str, str] | None) -> None:
        """Raises:
        PolicyQuantError: one of the patterns is no regular expression.
        """
        self._steps = [(pattern, _compiled(pattern), text) for pattern, text in (rename or {}).items()]

    def layer(self, name: str, suffix: str) -> str:
        """The name of a layer after renaming; `suffix` is the last part of its tensor's name.

        Raises:
            PolicyQuantError: a replacement does not fit its pattern.
        """
        full = f"{name}.{suffix}" if name else suffix
        for pattern, compiled, text in self._steps:
            full = _replaced(pattern, compiled, text, full)
        return full.removesuffix(suffix).removesuffix(".")


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise PolicyQuantError(f"rename: {pattern!r} is no regular expression: {error}") from None


def _replaced(pattern: str, compiled: re.Pattern[str], text: str, name: str) -> str:
    try:
        return compiled.sub(text, name)
    except (re.error, IndexError) as error:
        raise PolicyQuantError(f"rename: {text!r} does not fit {pattern!r}: {error}") from None
