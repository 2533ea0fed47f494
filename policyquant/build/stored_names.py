"""From the name of a module's part to what a source stores for it.

A module may call its parts as the checkpoint does, as transformers' module tree does, or by canonical names; a caller's
`rename` comes before all of these. The first namespace that has a name decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from policyquant.errors import PolicyQuantError
from policyquant.inventory.layers import NAMESPACES, Indices, LayerSet, Part


class StoredPart(NamedTuple):
    """One part of one stored layer."""

    layer: LayerSet
    indices: Indices
    part: Part
    name: str
    """Checkpoint name of the layer, under which the plan has it."""

    @property
    def rows(self) -> tuple[int, int] | None:
        """Which rows of the stored weight are this part's; None if the layer stores nothing else.

        Raises:
            PolicyQuantError: the layer stores its parts in a way that this version does not take apart.
        """
        if len(self.layer.parts) == 1 and not self.part.repeats:
            return None
        sizes = [part.shape[0] for part in self.layer.parts if part.shape is not None and len(part.shape) == 2]
        if self.part.repeats or self.layer.transposed or len(sizes) < len(self.layer.parts):
            raise PolicyQuantError(
                f"{self.name!r} stores {len(self.layer.parts)} parts as one tensor of shape {self.layer.shape}, which"
                " cannot be loaded part by part yet; a checkpoint that stores them one by one can"
            )
        start = sum(sizes[: self.layer.parts.index(self.part)])
        return start, start + sizes[self.layer.parts.index(self.part)]

    def tensor_names(self) -> Iterator[tuple[str, str]]:
        """Suffix and full name of each tensor that the layer stores."""
        for tensor in self.layer.tensors:
            yield tensor.suffix, f"{self.name}.{tensor.suffix}" if self.name else tensor.suffix


class HasLayers(Protocol):
    """An inventory, or anything else that has its layers."""

    @property
    def sets(self) -> Sequence[LayerSet]: ...


class StoredNames:
    """All names under which a source's layers and their parts can be asked for."""

    def __init__(self, inventory: HasLayers, rename: Mapping[str, str] | None = None) -> None:
        replacements = Renaming(rename)
        self._found: dict[str, StoredPart] = {}
        self.renamed: dict[str, str] = {}
        """What `rename` made of checkpoint names, where it changed them."""
        self.parts: list[StoredPart] = []
        self._activations: dict[str, list[StoredPart]] | None = None
        later: list[tuple[str, StoredPart]] = []
        for layer in inventory.sets:
            for part in layer.parts:
                for indices in layer.indices:
                    stored = StoredPart(layer, indices, part, layer.name(indices))
                    self.parts.append(stored)
                    self._add(stored, replacements, later)
        for name, stored in later:
            self._found.setdefault(name, stored)

    def _add(
        self,
        stored: StoredPart,
        replacements: Renaming,
        later: list[tuple[str, StoredPart]],
    ) -> None:
        members = range(stored.part.repeats) if stored.part.repeats else (None,)
        for namespace in NAMESPACES:
            for form in stored.part.names.get(namespace, ()):
                if not form.own:
                    continue
                for member in members:
                    name = form.fill(stored.indices if member is None else (*stored.indices, member))
                    if namespace == "checkpoint":
                        suffix = stored.layer.tensors[0].suffix if stored.layer.tensors else "weight"
                        changed = replacements.layer(name, suffix)
                        if changed != name:
                            self.renamed[name] = changed
                        self._found.setdefault(changed, stored)
                    else:
                        later.append((name, stored))

    def find(self, name: str) -> StoredPart | None:
        """What is stored for a module's part of this name."""
        return self._found.get(name)

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
