"""A family made up on the spot from common spellings, for models that have no data of their own.

Kinds, canonical names and groups are told from names and `config.json` only. What they do not tell is left open: kind
`other`, no group, readers unknown; a wrong group is worse than none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from policyquant.findings import Finding
from policyquant.inventory.architectures import architectures
from policyquant.inventory.architectures import common_spellings as words
from policyquant.inventory.architectures.block_places import Block
from policyquant.inventory.architectures.family import Family, Tie, without_numbers
from policyquant.inventory.architectures.outside_places import Outside
from policyquant.inventory.architectures.towers import find_towers, inside
from policyquant.inventory.architectures.vocabulary import place
from policyquant.inventory.collapse import template_of
from policyquant.inventory.kinds import Kind
from policyquant.inventory.layers import INDEX, StoredModel, StoredSet


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
    if as_part_of is None:
        guess.add_layers_without_tensors()
    family = Family(
        name="unknown",
        layers=guess.layers,
        kinds=guess.kinds,
        feeds=guess.readers(),
        transposed=frozenset(guess.transposed()),
        equal_parts=frozenset({"vision", "audio", "encoder", "decoder"}),
        ties=() if as_part_of else guess.ties(),
    )
    return family, list(guess.findings(unknown, as_part_of))


_OFTEN_TIED = ("lm_head", "output", "vocab_projector", "decoder")
"""Ends of names of heads that may share the embedding."""


@dataclass(eq=False)
class _Guess:
    """The rows of a family's table, as they are found."""

    model: StoredModel
    stored: Sequence[StoredSet]
    layers: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, Kind] = field(default_factory=dict)
    unclear: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.suffixes: dict[str, set[str]] = defaultdict(set)
        self.children: dict[str, set[str]] = defaultdict(set)
        for each in self.stored:
            self.suffixes[each.template].update(tensor.suffix for tensor in each.tensors)
            name = each.template
            while name:
                parent, _, last = name.rpartition(".")
                self.children[parent].add(last)
                name = parent
        self.towers = find_towers(self.stored, self.model.config)
        self.outside = Outside(self.stored, self.towers, self.suffixes, self.children)
        self.classes = self._classes()

    def _classes(self) -> Mapping[str, str]:
        result: dict[str, str] = {}
        for name, class_name in self.model.module_types.items():
            if name:
                result.setdefault(template_of(name)[0], class_name)
        return result

    # --- one stored layer ----------------------------------------------------------------------------------------

    def add(self, each: StoredSet) -> None:
        """Find the place and the kind of one set of stored layers."""
        template = each.template
        tower = next((t for t in self.towers if t.holds(template)), None)
        if tower is not None:
            for name, tail in tower.tails(each, self.stored):
                block = Block(inside(tail), name, self.children, self.suffixes[template])
                self._place(name, tower.canonical(block.place(tower.name), tail), block.kind)
            return
        for name, canonical, kind in self.outside.rows(each):
            self._place(name, canonical, kind)

    def _place(self, name: str, canonical: str, kind: Kind | None) -> None:
        self.layers[name] = canonical
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

    def _kind_by_class(self, template: str) -> Kind | None:
        class_name = self.classes.get(template, "")
        for end, kind in words.CLASS_KINDS:
            if class_name.endswith(end):
                return kind
        return "activation" if class_name in words.ACTIVATION_CLASSES else None

    def _kind_by_word(self, name: str) -> Kind:
        parent, _, last = name.rpartition(".")
        kind = words.kind_by_word(last, parent)
        suffixes = self.suffixes[_generalised(name)]
        if kind in ("linear", "conv") and not any("weight" in s or s.endswith("_blocks") for s in suffixes):
            return "other"  # Bare parameters of a module that may do anything.
        return kind

    # --- what owns no tensor, who reads what, what is tied ----------------------------------------------------------

    def add_layers_without_tensors(self) -> None:
        """Attention modules and activations, named by their parents."""
        for name, canonical in list(self.layers.items()):
            where = place(canonical)
            parent = name.rpartition(".")[0]
            container, _, leaf = where.relative.rpartition(".")
            if container in ("attention", "cross_attention") and leaf in ("q_proj", "qkv_proj", "kv_a_proj"):
                self.layers.setdefault(parent, where.prefix + container)
            elif leaf in ("up_proj", "gate_up_proj") and where.role is not None:
                if f"experts.{INDEX}" in parent:
                    parent = parent.rpartition(f".{INDEX}")[0]
                elif name.endswith("experts"):
                    continue
                word = "activation_fn" if parent.endswith(INDEX) else "act_fn"
                word = "intermediate_act_fn" if parent.endswith(".intermediate") else word
                known = next((w for w in ("act_fn", "activation_fn", "act") if f"{parent}.{w}" in self.classes), word)
                self.layers.setdefault(f"{parent}.{known}", f"{where.prefix}{container}.act")

    def readers(self) -> dict[str, tuple[str, ...] | None]:
        """Where readers are not sure: of norms in blocks (their order is not known), and behind an extra norm."""
        result: dict[str, tuple[str, ...] | None] = {}
        normed = {
            place(c).prefix + place(c).relative.partition(".")[0]
            for name, c in self.layers.items()
            if place(c).role is None and self.kinds.get(_generalised(name)) == "norm"
        }
        for canonical in self.layers.values():
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

    def ties(self) -> tuple[Tie, ...]:
        """A head that is not stored shares the embedding, as is transformers' default."""
        storage = next((name for name, canonical in self.layers.items() if canonical == "embedding"), None)
        if storage is None:
            return ()
        classes = architectures(self.model.config)
        likely = any(end in each for each in classes for end in ("CausalLM", "ConditionalGeneration", "LMHead"))
        masked = any("MaskedLM" in each or "PreTraining" in each for each in classes)
        heads = [name for name, canonical in self.layers.items() if canonical == "head"]
        said = likely or masked
        result = [Tie(name, storage, default=said) for name in heads if name.endswith(_OFTEN_TIED)]
        if not heads:
            name = self._head_name()
            self.layers[name] = "head"
            result.append(Tie(name, storage, default=likely or (masked and name != "lm_head")))
        if storage == "shared":
            for tower in self.towers:
                name = f"{tower.blocks.partition('.')[0]}.embed_tokens"
                if tower.name in ("encoder", "decoder") and name not in self.layers:
                    self.layers[name] = f"{tower.name}.embedding"
                    result.append(Tie(name, "shared", default=None))
        return tuple(result)

    def _head_name(self) -> str:
        known = {"vocab_transform": "vocab_projector", "lm_head.dense": "lm_head.decoder"}
        for stored, head in known.items():
            if stored in self.layers:
                return head
        before = next((name for name in self.layers if name.endswith("predictions.transform.dense")), "")
        if before:
            return f"{before.removesuffix('transform.dense')}decoder"
        return "proj_out" if self.model.config.get("model_type") == "whisper" else "lm_head"

    # --- what to say ---------------------------------------------------------------------------------------------

    def findings(self, unknown: Sequence[StoredSet], family: Family | None) -> list[Finding]:
        """What was not known."""
        names = tuple(dict.fromkeys(each.template for each in unknown))
        result = []
        if family is None:
            what = self.model.config.get("model_type") or ", ".join(architectures(self.model.config))
            said = f"the model type {what!r}" if what else "a model without a configuration"
            result.append(
                Finding(
                    "PQ452",
                    "note",
                    f"no architecture data for {said}: kinds, groups and portable names follow common spellings",
                )
            )
        else:
            result.append(
                Finding(
                    "PQ453",
                    "note",
                    f"the data of {family.name} models does not know these layers; common spellings were used",
                    names,
                )
            )
        if self.unclear:
            result.append(
                Finding(
                    "PQ454",
                    "note",
                    "it is not known what these layers do; they have kind 'other' and cannot be quantized",
                    tuple(dict.fromkeys(self.unclear)),
                )
            )
        if loose := self._ungrouped():
            result.append(
                Finding(
                    "PQ455",
                    "note",
                    "it is not known whether engines fuse these projections; no group was applied",
                    loose,
                )
            )
        return result

    def _ungrouped(self) -> tuple[str, ...]:
        """Linear layers in attention or MLP modules whose place is not known."""
        return tuple(
            name
            for name, canonical in self.layers.items()
            if place(canonical).role is None
            and self.kinds.get(_generalised(name)) == "linear"
            and place(canonical).relative.partition(".")[0] in ("attention", "cross_attention", "mlp", "moe")
        )


def _generalised(name: str) -> str:
    return without_numbers(name)[0]
