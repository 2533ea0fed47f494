"""What one family of models says about itself, and how its names are looked up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from policyquant.inventory.architectures.vocabulary import place
from policyquant.inventory.collapse import is_index
from policyquant.inventory.kinds import Kind
from policyquant.inventory.layers import INDEX


class Tie(NamedTuple):
    """Two layers that share one tensor unless the configuration says otherwise. Names are checkpoint names."""

    tied: str
    """The layer that usually owns nothing."""
    storage: str
    """The layer that usually owns the tensor."""
    default: bool | None = False
    """Whether they are tied when `tie_word_embeddings` is not given; None: tied whatever it says."""
    requires: str = ""
    """The tied layer exists only in models that store something under this name."""


class Row(NamedTuple):
    """A layer that some blocks have under a name which means something else in the others."""

    checkpoint: str
    canonical: str
    blocks: frozenset[int]
    """First indices of its members."""


@dataclass(frozen=True)
class Family:
    """Facts about one family, as data."""

    name: str
    layers: Mapping[str, str]
    """Checkpoint template → canonical template. Layers that own no tensor are listed too; they are added where
    `vocabulary.IMPLIED_BY` says that they exist. A number in a template stands for that index alone."""
    rows: tuple[Row, ...] = ()
    """More layers, looked for before those in `layers`: hybrids give one name to softmax attention in some blocks and
    to something else in others."""
    listed: Mapping[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    """Checkpoint template of layers that own no tensor → their indices, where the source lists all modules."""
    modules: tuple[tuple[str, str], ...] = ()
    """Replacements that turn a checkpoint template into the module name of transformers v5, each applied once, in
    order. One that begins with a dot is looked for inside the name, any other at its beginning; both end where a
    dotted part ends."""
    base: str = ""
    """Leading part that checkpoints of the bare model, saved without its head, lack: `model`."""
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    """Checkpoint template → kind, where the canonical name does not tell."""
    weights: Mapping[str, str] = field(default_factory=dict)
    """Checkpoint template → the tensor that is the layer's weight though it is not called `weight`."""
    transposed: frozenset[str] = frozenset()
    """Names of tensors (templates) that are stored [in, out]."""
    feeds: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)
    """Canonical template → readers, where they differ from the vocabulary's; in a block relative to it."""
    post_norm_when: tuple[str, object] | None = None
    """Key and value in the configuration of models that norm after each half of a block: their norms feed the residual
    stream too."""
    ties: tuple[Tie, ...] = ()
    equal_parts: frozenset[str] = frozenset()
    """Towers whose fused q/k/v are equal thirds."""

    def module_name(self, checkpoint: str) -> str:
        """The module name of transformers v5 for a checkpoint template."""
        name = checkpoint
        for old, new in self.modules:
            start = name.find(old) if old[0] == "." else (0 if name.startswith(old) else -1)
            end = start + len(old)
            if start >= 0 and (end == len(name) or name[end] == "."):
                name = name[:start] + new + name[end:]
        return name

    @cached_property
    def spellings(self) -> Spellings:
        """All names of this family, ready for looking up."""
        return Spellings(self)


@dataclass(frozen=True, eq=False, slots=True)
class Entry:
    """One layer of a family by its three names."""

    checkpoint: str
    canonical: str
    module: str
    """Of a routed expert's projection: the name of the module that holds all experts."""
    fixed: tuple[tuple[int, int], ...] = ()
    """(position, value) of indices that this entry is for; all others are free."""
    blocks: frozenset[int] | None = None
    """First indices that this entry is for; None: all."""
    experts: Mapping[str, str] | None = None
    """Of a module that holds all experts of a block: last part of each projection's place → its checkpoint template,
    which has one more index."""

    def fits(self, indices: tuple[int, ...]) -> bool:
        """Whether the layer with these indices is this one."""
        if self.blocks is not None and (not indices or indices[0] not in self.blocks):
            return False
        return all(indices[position] == value for position, value in self.fixed)


class Spellings:
    """Finds the entry of a stored name, in either spelling."""

    def __init__(self, family: Family) -> None:
        self.by_checkpoint: dict[str, list[Entry]] = {}
        self.by_module: dict[str, list[Entry]] = {}
        self.by_canonical: dict[str, list[Entry]] = {}
        experts: dict[str, tuple[str, dict[str, str]]] = {}
        everywhere = _with_and_without(family.base, family.layers.items())
        rows = [*family.rows, *((checkpoint, canonical, None) for checkpoint, canonical in everywhere)]
        for checkpoint, canonical, blocks in rows:
            module = family.module_name(checkpoint)
            container = experts_module(checkpoint)
            if container:
                module = family.module_name(container)
                prefix = place(canonical).prefix
                projections = experts.setdefault(container, (f"{prefix}moe.experts", {}))[1]
                projections[canonical.rpartition(".")[2]] = checkpoint
            self._add(checkpoint, canonical, module, blocks=blocks, listed_as_module=not container)
        for container, (canonical, projections) in experts.items():
            if container not in self.by_checkpoint:
                self._add(container, canonical, family.module_name(container), projections)

    def _add(
        self,
        checkpoint: str,
        canonical: str,
        module: str,
        experts: Mapping[str, str] | None = None,
        *,
        blocks: frozenset[int] | None = None,
        listed_as_module: bool = True,
    ) -> None:
        template, fixed = without_numbers(checkpoint)
        module_template, _ = without_numbers(module)
        entry = Entry(template, canonical, module_template, fixed, blocks, experts)
        self.by_checkpoint.setdefault(template, []).append(entry)
        if listed_as_module:
            self.by_module.setdefault(module_template, []).append(entry)
        self.by_canonical.setdefault(canonical, []).append(entry)

    def __contains__(self, entry: Entry) -> bool:
        return entry in self.by_checkpoint.get(entry.checkpoint, ())

    def find(self, template: str, *, as_module: bool) -> list[Entry]:
        """Entries for a stored template, the likelier spelling first; empty if the family does not know the name."""
        first, second = self.by_checkpoint, self.by_module
        if as_module:
            first, second = second, first
        return first.get(template) or second.get(template) or []


def experts_module(checkpoint: str) -> str:
    """`model.layers.#.mlp.experts` for `model.layers.#.mlp.experts.#.up_proj`; empty for anything else."""
    before, separator, _ = checkpoint.rpartition(f"experts.{INDEX}.")
    return f"{before}experts" if separator else ""


def under(prefix: str, canonical: str, block: Mapping[str, str]) -> dict[str, str]:
    """A block's table with both sides put under a prefix. An empty name on the left is the prefix itself."""
    return {
        f"{prefix}.{name}" if name else prefix: f"{canonical}.{role}" if role else canonical
        for name, role in block.items()
    }


def _with_and_without(base: str, layers: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    rows = list(layers)
    yield from rows
    if base:
        known = {checkpoint for checkpoint, _ in rows}
        for checkpoint, canonical in rows:
            bare = checkpoint.removeprefix(f"{base}.")
            if bare not in known:
                yield bare, canonical


def without_numbers(name: str) -> tuple[str, tuple[tuple[int, int], ...]]:
    """A row's template, and the (position, value) of the indices that it gives as numbers."""
    parts = name.split(".")
    fixed: list[tuple[int, int]] = []
    position = 0
    for at, part in enumerate(parts):
        if part == INDEX:
            position += 1
        elif is_index(part):
            parts[at] = INDEX
            fixed.append((position, int(part)))
            position += 1
    return ".".join(parts), tuple(fixed)
