"""The layers of a model, folded: repeated layers are one entry with the indices at which they repeat.

`model.layers.0.mlp.up_proj` … `model.layers.31.mlp.up_proj` are one `LayerSet` with the name template
`model.layers.#.mlp.up_proj` and 32 index tuples `(0,) … (31,)`. Everything that is alike about the 32 (kind, shape,
dtype, tensors, names in each namespace) is stored once, so that work on a model grows with its templates and not with
its experts.

Decisions are made per *part*. A layer that stores one thing is its own only part; a layer that stores several named
things (fused q/k/v, 3-D experts) has one part each. A part may repeat inside its layer (the experts of one 3-D tensor):
then its index tuples are the layer's with one more index at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from policyquant.findings import Finding
from policyquant.inventory.kinds import Kind

Namespace = Literal["checkpoint", "module", "canonical"]

NAMESPACES: Final[tuple[Namespace, ...]] = ("checkpoint", "module", "canonical")
"""In the order in which a pattern is tried."""

INDEX: Final = "#"
"""Stands in a name template for a part that is a layer or expert index."""

Indices = tuple[int, ...]


class StoredTensor(NamedTuple):
    """One tensor of a layer. `shape` is None when the source does not tell it (an index alone)."""

    suffix: str
    """The last part of the tensor's name: `weight`, `weight_scale_inv`, `e_score_correction_bias`."""
    dtype: str | None
    """As safetensors spells it: `BF16`, `F8_E4M3`, `U8`."""
    shape: tuple[int, ...] | None


class StoredSet(NamedTuple):
    """Layers of a source that share one name template and the same tensors, before anything is known about them."""

    template: str
    indices: tuple[Indices, ...]
    """Sorted. `((),)` for a layer that does not repeat."""
    tensors: tuple[StoredTensor, ...]


class NameForm(NamedTuple):
    """One name that every member of a set has, as a template and how to fill it."""

    template: str
    positions: tuple[int, ...]
    """For each `#` in the template, which index of the member's tuple goes there."""
    offsets: tuple[int, ...]
    """For each `#`, what is subtracted from that index (`mtp.0` is `model.layers.61` less 61)."""
    own: bool = True
    """False for a fused name, which stands for all members of a group (`qkv_proj` for `q_proj`)."""

    def fill(self, indices: Indices) -> str:
        """The name of the member at `indices`."""
        if not self.positions:
            return self.template
        pieces = self.template.split(INDEX)
        numbers = [str(indices[p] - o) for p, o in zip(self.positions, self.offsets, strict=True)]
        return "".join(piece + number for piece, number in zip(pieces, [*numbers, ""], strict=True))

    def fill_all(self, members: Sequence[Indices]) -> list[str]:
        """The names of many members; faster than `fill` on each."""
        if not self.positions:
            return [self.template] * len(members)
        pattern = self.template.replace("%", "%%").replace(INDEX, "%d")
        if any(self.offsets) or (members and self.positions != tuple(range(len(members[0])))):
            pairs = tuple(zip(self.positions, self.offsets, strict=True))
            return [pattern % tuple([indices[p] - o for p, o in pairs]) for indices in members]
        return [pattern % indices for indices in members]


def own_name(template: str) -> NameForm:
    """The form that fills each `#` of `template` with the member's indices in order."""
    count = template.split(".").count(INDEX)
    return NameForm(template, tuple(range(count)), (0,) * count)


class GroupForm(NamedTuple):
    """A fused group that every member of a set belongs to: members with equal label and key must agree."""

    label: str
    """Canonical template of what they fuse to: `decoder.#.attention.qkv_proj`."""
    positions: tuple[int, ...]
    """Which indices of the member make the key: (0,) for all experts of block 0."""


class StoredScheme(NamedTuple):
    """How a layer's weight is stored when it is stored quantized."""

    method: str
    """The method of ours that says the same (`fp8_block`), or the format's own word if there is none (`awq`)."""
    description: str
    """For people: `F8_E4M3, block 128x128`."""
    bits: int
    """Bits of one weight, scales not counted."""


@dataclass(frozen=True, slots=True)
class Part:
    """One named thing that a layer stores, the unit of decision."""

    role: str
    """Canonical template of its own name: `decoder.#.attention.q_proj`; empty if the role is unknown."""
    names: Mapping[Namespace, tuple[NameForm, ...]]
    """All its names, own ones first, then fused ones (which include the name of the layer that stores it fused)."""
    shape: tuple[int, ...] | None
    """Logical shape of its weight: [out, in], or () if it has none; None if unknown."""
    repeats: int = 0
    """How often it repeats inside the layer (experts of a 3-D tensor); 0: it does not, and has the layer's indices."""
    group: GroupForm | None = None


@dataclass(frozen=True, slots=True, eq=False)
class LayerSet:
    """Layers that differ in their indices only."""

    kind: Kind
    indices: tuple[Indices, ...]
    """Sorted index tuples of the members; `((),)` for a single layer."""
    names: Mapping[Namespace, tuple[NameForm, ...]]
    """The layer's names in each namespace, own ones first. `names["checkpoint"][0]` is the name that is printed."""
    parts: tuple[Part, ...]
    """At least one. For a plain layer one part with the layer's own names, shape and indices."""
    tensors: tuple[StoredTensor, ...] = ()
    """Empty for a layer that owns no tensor (activation, attention, tied head)."""
    shape: tuple[int, ...] | None = ()
    """Logical shape of the main weight, the largest where there are several: [out, in] for a linear, [experts, out, in]
    for 3-D experts; () if it has none; None if unknown."""
    dtype: str | None = None
    """Stored dtype of the main weight as safetensors spells it; None if unknown or without a weight."""
    parameters: int | None = 0
    """Logical parameters of one member: weights unpacked, scales and buffers not counted; None if unknown."""
    weight_elements: int | None = 0
    """Those of them that a method would quantize (the main weight), None if unknown."""
    bytes: int | None = 0
    """Stored bytes of one member, scales and buffers included; None if unknown."""
    weight_bytes: int | None = 0
    """Stored bytes of the main weight with its scales and zero points: what a method's own bytes replace."""
    stored: StoredScheme | None = None
    tied_to: str | None = None
    """Checkpoint name of the layer whose storage this one shares; None if it has its own."""
    feeds: tuple[str, ...] | None = None
    """Canonical templates of all that read this layer's output, at the same block; () if no layer of the model that
    takes a quantized input reads it; None if unknown."""
    has_kv_cache: bool = False
    prediction: bool = False
    """Part of a multi-token-prediction layer, which negative range ends do not count."""
    transposed: bool = False
    """The weight is stored [in, out] (Conv1D)."""

    @property
    def name_template(self) -> str:
        """Template of the checkpoint name."""
        return self.names["checkpoint"][0].template

    def name(self, indices: Indices) -> str:
        """Checkpoint name of the member at `indices`."""
        return self.names["checkpoint"][0].fill(indices)


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A source as read, before architecture data is applied."""

    name: str
    source: str
    """What was opened, as a person would write it."""
    config: Mapping[str, object]
    """Values of `config.json`; empty if there is none."""
    sets: tuple[StoredSet, ...]
    naming: Literal["checkpoint", "module"] = "checkpoint"
    """Whether `sets` carry checkpoint names or those of a module tree."""
    module_types: Mapping[str, str] = field(default_factory=dict)
    """Class name of each module by module name, where the source tells (a module tree, a saved inventory)."""
    findings: tuple[Finding, ...] = ()
    """What there is to say about the source itself."""
    shared: Mapping[str, str] = field(default_factory=dict)
    """Tensors that are the same object as an earlier one, where the source tells (a module tree): name of the tensor →
    name of the first that has this storage."""
