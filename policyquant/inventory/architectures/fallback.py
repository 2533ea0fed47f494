"""A family made up on the spot from common spellings, for models that have no data of their own.

Kinds, canonical names and groups are told from names and `config.json` only. What they do not tell is left open: kind
`other`, no group, readers unknown; a wrong group is worse than none.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from policyquant.findings import Finding
from policyquant.inventory.architectures import common_spellings as words
from policyquant.inventory.architectures.block_places import Block
from policyquant.inventory.architectures.fallback_findings import What, findings
from policyquant.inventory.architectures.family import Family, Row, without_numbers
from policyquant.inventory.architectures.likely_ties import likely_ties
from policyquant.inventory.architectures.linear_attention import attention_module, linear_attention
from policyquant.inventory.architectures.outside_places import Outside, shared_parts
from policyquant.inventory.architectures.towers import find_towers, inside
from policyquant.inventory.architectures.vocabulary import IMPLIED_BY, Place, place
from policyquant.inventory.collapse import Templates
from policyquant.inventory.kinds import Kind
from policyquant.inventory.layers import INDEX, Indices, StoredModel, StoredSet


def infer(
    model: StoredModel, stored: Sequence[StoredSet], unknown: Sequence[StoredSet], as_part_of: Family | None
) -> tuple[Family, list[Finding]]:
    """Make up the data that `unknown` layers need.

    Args:
        model: The source.
        stored: All its layers, for the context.
        unknown: Those of which no family's data speaks.
        as_part_of: The family whose data the others have.
    """
    guess = _Guess(model, stored)
    for each in unknown:
        guess.add(each)
    guess.tell_apart()
    if as_part_of is None:
        guess.add_layers_without_tensors()
    ties, tied = ((), {}) if as_part_of else likely_ties(guess.layers, guess.towers, model.config)
    family = Family(
        name="unknown",
        layers={**guess.layers, **tied},
        rows=tuple(row for rows in guess.rows.values() for row in rows),
        listed=guess.listed,
        kinds=guess.kinds,
        feeds=guess.readers(),
        transposed=frozenset(guess.transposed()),
        equal_parts=frozenset({"vision", "audio", "encoder", "decoder"}),
        ties=ties,
    )
    what = What(guess.layers, family.rows, guess.kinds, guess.unclear)
    return family, list(findings(model, stored, unknown, as_part_of, what))


_ACTIVATED: Final[Mapping[str, str]] = {
    source: act for act, sources in IMPLIED_BY.items() if act.endswith(".act") for source in sources
}
"""Place of a layer → that of the activation that goes with it."""


@dataclass(eq=False)
class _Guess:
    """The rows of a family's table, as they are found."""

    model: StoredModel
    stored: Sequence[StoredSet]
    layers: dict[str, str] = field(default_factory=dict)
    rows: dict[str, list[Row]] = field(default_factory=dict)
    """By checkpoint template: what holds for some blocks only."""
    listed: dict[str, tuple[Indices, ...]] = field(default_factory=dict)
    kinds: dict[str, Kind] = field(default_factory=dict)
    unclear: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.suffixes: dict[str, set[str]] = defaultdict(set)
        self.ranks: dict[str, int] = {}
        self.blocks: dict[str, set[int]] = defaultdict(set)
        self.children: dict[str, set[str]] = defaultdict(set)
        for each in self.stored:
            self.suffixes[each.template].update(tensor.suffix for tensor in each.tensors)
            for tensor in each.tensors:
                if tensor.suffix == "weight" and tensor.shape is not None:
                    self.ranks[each.template] = len(tensor.shape)
            self.blocks[each.template].update(indices[0] for indices in each.indices if indices)
            name = each.template
            while name:
                parent, _, last = name.rpartition(".")
                self.children[parent].add(last)
                name = parent
        self.lower_children = {name: {child.lower() for child in inside} for name, inside in self.children.items()}
        self.towers = find_towers(self.stored, self.model.config)
        self.outside = Outside(self.stored, self.towers, self.suffixes, self.children)
        self.beside_blocks: dict[str, list[str]] = defaultdict(list)
        self.classes: dict[str, str] = {}
        self.at: dict[str, list[Indices]] = defaultdict(list)
        templates = Templates()
        for name, class_name in self.model.module_types.items():
            if name:
                template, indices = templates[name]
                self.classes.setdefault(template, class_name)
                self.at[template].append(indices)
        self.activations = {
            name.rpartition(".")[0]: name
            for name in reversed(self.classes)
            if self._kind_by_class(name) == "activation"
        }
        self.linear_attention = linear_attention(self.stored, self.children)

    # --- one stored layer ----------------------------------------------------------------------------------------

    def add(self, each: StoredSet) -> None:
        """Find the place and the kind of one set of stored layers."""
        template = each.template
        tower = next((t for t in self.towers if t.holds(template)), None)
        if tower is not None:
            for name, tail in tower.tails(each, self.stored):
                for linear, blocks in self._attentions(template):
                    suffixes = self.suffixes[template]
                    block = Block(inside(tail), name, self.lower_children, suffixes, linear_attention=linear)
                    self._place(name, tower.canonical(block.place(tower.name), tail), block.kind, blocks)
            return
        for name, canonical, kind in self.outside.rows(each):
            if canonical and name not in self.beside_blocks[canonical]:
                self.beside_blocks[canonical].append(name)
            self._place(name, canonical, kind)

    def _attentions(self, template: str) -> Iterator[tuple[bool, frozenset[int] | None]]:
        """Whether layers are part of linear attention, and in which blocks; None: in all others."""
        linear = self.linear_attention.get(attention_module(template), frozenset()) & self.blocks[template]
        if linear and len(linear) < len(self.blocks[template]):
            yield True, linear
            yield False, None
        else:
            yield bool(linear), None

    def tell_apart(self) -> None:
        """Give each place beside the blocks to one layer; others keep names of their own.

        The nearest to the blocks has it; of projectors the one of which most places are known, with all of these.
        """
        near = self.towers[0].blocks.split(".") if self.towers else []
        projectors = Counter(
            name.rpartition(".")[0]
            for canonical, names in self.beside_blocks.items()
            for name in names
            if canonical.startswith("projector.")
        )
        for canonical, names in self.beside_blocks.items():
            role = place(canonical).role
            if role is None or canonical == "head.bias":
                continue
            names.sort(key=lambda name: (-projectors[name.rpartition(".")[0]], -shared_parts(name.split("."), near)))
            for name in names[1:]:
                self.layers[name] = self.outside.spelled(name)
                self.kinds.setdefault(_generalised(name), role.kind)

    def _place(self, name: str, canonical: str, kind: Kind | None, blocks: frozenset[int] | None = None) -> None:
        if blocks is None:
            self.layers[name] = canonical
        else:
            self._add_row(Row(name, canonical, blocks))
        role = place(canonical).role
        if role is not None and kind is None:
            return
        template = _generalised(name)
        kind = kind or self._kind_by_class(template)
        if kind is None:
            kind = self._kind_by_word(name)
        self.kinds[template] = kind
        if role is None and kind == "other":
            self.unclear.append(template)

    def _add_row(self, row: Row) -> None:
        rows = self.rows.setdefault(row.checkpoint, [])
        if row not in rows:
            rows.append(row)

    def _kind_by_class(self, template: str) -> Kind | None:
        class_name = self.classes.get(template, "")
        if class_name.startswith("_"):
            return None  # A parametrization of another module's weight.
        for end, kind in words.CLASS_KINDS:
            if class_name.endswith(end):
                return kind
        known = class_name in words.ACTIVATION_CLASSES or class_name.startswith(words.ACTIVATION_BEGINNINGS)
        return "activation" if known else None

    def _kind_by_word(self, name: str) -> Kind:
        parent, _, last = words.unwrapped(name).rpartition(".")
        template = _generalised(name)
        kind = words.kind_by_word(last, parent)
        suffixes = self.suffixes[template]
        rank = self.ranks.get(template)
        if kind == "linear" and rank is not None and rank > 3:
            return "conv"
        if kind == "conv" and rank == 2:
            return "linear"
        if kind in ("linear", "conv") and not any("weight" in s or s.endswith("_blocks") for s in suffixes):
            return "other"  # Bare parameters of a module that may do anything.
        return kind

    # --- what owns no tensor, who reads what ------------------------------------------------------------------------

    def add_layers_without_tensors(self) -> None:
        """Attention modules and activations, named by their parents."""
        implied: dict[str, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
        for source, canonical, limit in self._all_rows():
            found = self._implied(source, place(canonical))
            if found is not None and found[0]:
                others = (row.blocks for row in self.rows.get(source, ()))
                blocks = self.blocks[source].difference(*others) if limit is None else limit
                implied[found[1]][found[0]].update(blocks)
        for canonical, names in implied.items():
            for name, here in names.items():
                known = self.layers.get(name)
                if known is None and (len(names) == 1 or not here):
                    self.layers[name] = canonical
                elif known != canonical and here:
                    # In a hybrid the name stands for something else in other blocks, or another name for this.
                    self._add_row(Row(name, canonical, frozenset(here)))
        self._add_listed()

    def _implied(self, name: str, where: Place) -> tuple[str, str] | None:
        """Name (empty if there is none) and canonical template of what owns no tensor and goes with a layer."""
        parent = words.unwrapped(name).rpartition(".")[0]
        container, _, leaf = where.relative.rpartition(".")
        if container in ("attention", "cross_attention") and leaf in ("q_proj", "qkv_proj", "kv_a_proj", "kv_proj"):
            return parent, where.prefix + container
        if leaf in ("up_proj", "gate_up_proj") and where.role is not None:
            return self._activation_of_mlp(parent), f"{where.prefix}{container}.act"
        if where.relative == "moe.experts":
            return self._activation_of_experts(name), f"{where.prefix}moe.experts.act"
        if where.relative in _ACTIVATED:
            # Whether there is a module for it, and what it is called, is for the source to tell.
            return self._activation_in(parent), where.prefix + _ACTIVATED[where.relative]
        return None

    def _all_rows(self) -> list[tuple[str, str, frozenset[int] | None]]:
        """Name, canonical template, and the blocks that it is limited to."""
        rows: list[tuple[str, str, frozenset[int] | None]] = [row for rows in self.rows.values() for row in rows]
        return [*rows, *((name, canonical, None) for name, canonical in self.layers.items())]

    def _add_listed(self) -> None:
        """Activations, and norms without a weight, that the source lists, wherever they are."""
        if self.model.naming != "module":
            return
        beside: dict[str, str] = {}
        for name, canonical, _ in self._all_rows():
            where = place(canonical)
            act = f"{where.relative.rpartition('.')[0]}.act"
            if act in IMPLIED_BY:
                beside.setdefault(name.rpartition(".")[0], where.prefix + act)
        known = {_generalised(name) for name, *_ in self._all_rows()}
        for template, indices in self.at.items():
            kind = self._kind_by_class(template)
            if kind not in ("activation", "norm") or template in self.suffixes or template in self.children:
                continue
            if template not in known:
                parent = template.rpartition(".")[0]
                tower = next((t for t in self.towers if t.holds(template)), None)
                if kind == "activation" and parent in beside:
                    self.layers[template] = beside[parent]
                elif tower is not None:
                    tail = template[len(tower.blocks) :].split(".")[1:]
                    found = (
                        "" if kind == "activation" else Block(inside(tail), template, self.lower_children, ()).place("")
                    )
                    self.layers[template] = tower.canonical(found, tail)
                else:
                    self.layers[template] = self._beside_fellows(template) or self.outside.spelled(template)
                self.kinds[template] = kind
            self.listed[template] = tuple(sorted(set(indices)))

    def _beside_fellows(self, template: str) -> str:
        """A canonical name beside those of what is right inside the same module, if they are as spelled there."""
        parent, _, last = template.rpartition(".")
        for child in sorted(self.children.get(parent, ())):
            canonical = self.layers.get(f"{parent}.{child}", "")
            if canonical.endswith(f".{child.lower()}"):
                return f"{canonical[: -len(child)]}{last.lower()}"
        return ""

    def _activation_of_mlp(self, parent: str) -> str:
        """Name of the activation of an MLP, as most models call it unless the source tells; empty if it has none."""
        if f"experts.{INDEX}" in parent:
            parent = parent.rpartition(f".{INDEX}")[0]
        found = self._activation_in(parent)
        if found or (self.classes and self.model.naming == "module"):
            return found
        if parent.endswith(".intermediate"):
            return f"{parent}.intermediate_act_fn"
        return f"{parent}.activation_fn" if parent.endswith(INDEX) else f"{parent}.act_fn"

    def _activation_of_experts(self, name: str) -> str:
        """The same of a module that holds all experts."""
        found = self._activation_in(name)
        return found if found or (self.classes and self.model.naming == "module") else f"{name}.act_fn"

    def _activation_in(self, parent: str) -> str:
        """Name of the activation right inside a module, stored or told by its class; else empty."""
        for child in sorted(self.children.get(parent, ())):
            name = f"{parent}.{child}"
            if place(self.layers.get(name, "")).relative.endswith(".act"):
                return name
        return self.activations.get(parent, "")

    def readers(self) -> dict[str, tuple[str, ...] | None]:
        """Where readers are not sure: of norms in blocks (their order is not known), and behind an extra norm."""
        result: dict[str, tuple[str, ...] | None] = {}
        normed = {
            place(c).prefix + place(c).relative.partition(".")[0]
            for name, c, _ in self._all_rows()
            if place(c).role is None and self.kinds.get(_generalised(name)) == "norm"
        }
        for _, canonical, _ in self._all_rows():
            where = place(canonical)
            if where.role is None:
                continue
            sure = ("attention.q_a_norm", "attention.kv_a_norm", "attention.q_norm", "attention.k_norm")
            inside = where.prefix + where.relative.partition(".")[0]
            if (where.role.kind == "norm" and where.relative not in sure) or (
                where.role.kind in ("activation", "attention") and inside in normed
            ):
                result[canonical] = None
        return result

    def transposed(self) -> Iterator[str]:
        """Weights of GPT-2's Conv1D, told by their class or by q/k/v that are thrice as wide as what they read."""
        lists = set()
        for each in self.stored:
            leaf = each.template.rpartition(".")[2]
            if self.classes.get(each.template) == "Conv1D":
                yield f"{each.template}.weight"
            elif leaf == "c_attn":
                shapes = {t.shape for t in each.tensors if t.suffix == "weight"}
                if any(s is not None and len(s) == 2 and s[1] == 3 * s[0] for s in shapes):
                    lists.add(each.template.partition(INDEX)[0])
        for name in self.layers:
            if name.partition(INDEX)[0] in lists and name.endswith((".c_attn", ".c_proj", ".c_fc")):
                yield f"{name}.weight"


def _generalised(name: str) -> str:
    return without_numbers(name)[0]
