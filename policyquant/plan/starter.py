"""A policy to start from, written for one model: its own names, ranges and counts stand in the comments."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Final

from policyquant.inventory.inventory import Inventory
from policyquant.inventory.layers import INDEX, LayerSet
from policyquant.inventory.spans import counted_spans, escape
from policyquant.plan.areas import Area, areas, as_pattern, canonical
from policyquant.plan.resolve import resolve
from policyquant.policy.load import load_policy

METHOD: Final = "fp8"
"""What the starter uses: half the bytes, nearly no loss, no calibration, any shape."""

_TOWERS: Final = ("vision", "audio", "projector")
"""Left as they are where there is a language model beside them: they are small, and sensitive."""

_MOST_LINES: Final = 200
"""Of the list of all layers."""

GENERAL: Final = """\
# A policy to start from. `policyquant init MODEL` writes one for a model, with its own names.
#
#   policyquant check policy.yaml MODEL                 is it valid, and does it fit the model
#   policyquant inspect MODEL --policy policy.yaml      what it decides for every layer
#   policyquant explain MODEL NAME --policy policy.yaml why
version: 1

# Presets (`policyquant presets`) and other files; their rules come before those below.
extends: fp8-dynamic

# The scheme of layers that no rule with a method reaches. Without it they stay as they are stored.
# default: none

# Rules. The last one that reaches a layer decides. A name covers everything inside that module; a layer goes by its
# name in the checkpoint, in the module tree, and by a canonical one that is the same for all models.
layers:
  # The first two and the last two blocks stay as they are.
  "decoder.{0..1,-2..-1}": none

  # Heads, embeddings and routers are protected: only a rule that names them quantizes them.
  # head: fp8

  # Attention left alone, also where the checkpoint stores q, k and v apart.
  # "*.qkv_proj": none

  # Routed experts in another method than the rest.
  # "decoder.*.moe.experts": fp8_block

  # The KV cache.
  # "*.self_attn": {kv_cache: fp8}

# Assertions: `policyquant check` fails if they do not hold, and no work starts.
# expect:
#   layers: {head: none}
#   bits_per_weight: "<= 9"
"""
"""The starter without a model."""


def starter_policy(inventory: Inventory) -> str:
    """A commented policy for this model, as YAML: what is worth quantizing is quantized, the rest is suggested."""
    return _Starter(inventory).text()


class _Starter:
    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory
        self.areas = areas(inventory)
        self.total = _parameters(inventory.sets)
        self.rules: dict[str, object] = {}
        """Those that are in force, by pattern."""
        repeated = [area for area in self.areas if area.repeats and not self._is_tower(area)]
        self.active = {area.key for area in repeated or self.areas if area.stored is None}
        self.caches = [layer for layer in inventory.sets if layer.has_kv_cache]

    def _is_tower(self, area: Area) -> bool:
        beside = any(other.key.split(".")[0] not in _TOWERS and other.repeats for other in self.areas)
        return beside and area.key.split(".")[0] in _TOWERS

    def text(self) -> str:
        rules = [*self._area_rules(), *self._protected(), *self._kv_cache(), *self._blocks()]
        layers = (
            ["layers:"]
            if self.rules
            else ["# (nothing in this model is known to be something a method takes)", "# layers:", ""]
        )
        lines = [*self._head(), "version: 1", "", *_RULES, *layers, *rules, *self._expectations(), *self._names()]
        return "\n".join(line.rstrip() for line in lines).rstrip() + "\n"

    def _head(self) -> Iterator[str]:
        inventory = self.inventory
        architecture = f" ({inventory.architecture})" if inventory.architecture else ""
        source = inventory.source
        yield _comment(f"A policy to start from, for {inventory.name or source}{architecture}:")
        yield _comment(f"{_layers(len(inventory))}, {_short(self.total)} parameters.")
        yield "#"
        yield _comment(f"  policyquant inspect {source} --policy policy.yaml       what it decides for every layer")
        yield _comment(f"  policyquant explain {source} NAME --policy policy.yaml  why")
        yield _comment(f"  policyquant check policy.yaml {source}                  whether it fits the model")

    def _area_rules(self) -> Iterator[str]:
        for area in self.areas:
            share = f", {_share(area.parameters, self.total)}" if self.total else ""
            where = ", ".join(area.modules[:3]) + (", …" if len(area.modules) > 3 else "")
            yield _comment(f"{area.title}: {_layers(area.count)}, {_short(area.parameters)} parameters{share}", 2)
            if where:
                yield _comment(f"  {where}", 2)
            pattern = quoted(area.pattern)
            if area.key in self.active:
                self.rules[area.pattern] = METHOD
                yield f"  {pattern}: {METHOD}"
            elif area.stored is not None:
                yield _comment(f"stored quantized ({area.stored}), and stays so; to turn it back:", 2)
                yield f"  # {pattern}: dequantize"
            else:
                yield _comment("stays as it is; to quantize it:", 2)
                yield f"  # {pattern}: {METHOD}"
            yield ""

    def _protected(self) -> Iterator[str]:
        layers = [layer for layer in self.inventory.sets if layer.kind in ("head", "embedding", "router")]
        if not layers:
            return
        yield "  # Protected: only a rule that names one of these quantizes it."
        for layer in layers[:_MOST_LINES]:
            tie = f", shares the storage of {layer.tied_to}" if layer.tied_to else ""
            for name, count in _spans(layer):
                yield _comment(f"  {name}  ({layer.kind}{f', {count:,} layers' if count > 1 else ''}{tie})", 2)
        head = next((layer for layer in layers if layer.kind == "head" and layer.stored is None), None)
        if head is not None:
            # A storage that an embedding shares needs a method that takes embeddings.
            method = METHOD if head.tied_to is None else "fp8_weight_only"
            yield f"  # {quoted(as_pattern(head.name_template))}: {method}"
        yield ""

    def _kv_cache(self) -> Iterator[str]:
        if not self.caches:
            return
        count = sum(len(layer.indices) for layer in self.caches)
        templates = dict.fromkeys(as_pattern(layer.name_template) for layer in self.caches)
        patterns = [pattern for pattern in templates if pattern not in self.rules]
        if not patterns:
            return
        alone = not self.rules
        yield _comment(f"KV cache: {_layers(count)}. Half its memory, for long contexts and large batches.", 2)
        for pattern in patterns[:_MOST_LINES]:
            if alone:
                # All that can be quantized is stored quantized: a policy that does nothing is no start.
                self.rules[pattern] = {"kv_cache": "fp8"}
            yield f"  {'' if alone else '# '}{quoted(pattern)}: {{kv_cache: fp8}}"
        yield ""

    def _blocks(self) -> Iterator[str]:
        sizes: dict[str, set[int]] = {}
        for area in self.areas:
            if area.key in self.active and area.repeats:
                for layer in area.layers:
                    if not layer.prediction:
                        before, _, _ = layer.name_template.partition(f".{INDEX}")
                        sizes.setdefault(before, set()).update(indices[0] for indices in layer.indices if indices)
        lines = []
        for before, blocks in sizes.items():
            if len(blocks) >= 4 and INDEX not in before:
                edge = 2 if len(blocks) >= 12 else 1
                pattern = f"{escape(before)}.{{0..{edge - 1},-{edge}..-1}}"
                lines.append(f"  # {quoted(pattern)}: none  # of {len(blocks)} blocks")
        if lines:
            yield "  # First and last blocks are the most sensitive. A later rule decides anew, so these stand last."
            yield from lines
            yield ""

    def _expectations(self) -> Iterator[str]:
        policy = load_policy({"version": 1, "layers": self.rules})
        bits = resolve(policy, self.inventory).total.bits_after
        if bits is not None:
            yield "# Assertions: `policyquant check` fails if they do not hold, and no work starts."
            yield "# expect:"
            yield f'#   bits_per_weight: "<= {math.ceil(bits * 20) / 20:g}"  # of the rules as they stand above'
            yield ""

    def _names(self) -> Iterator[str]:
        """Every canonical name of this model that a rule can be about."""
        rows: list[tuple[str, str, str]] = []
        for layer in self.inventory.sets:
            template = canonical(layer)
            if template is None or layer.kind in ("norm", "activation", "other"):
                continue
            form = next(form for form in layer.names["canonical"] if form.own)
            own = ", ".join(name for name, _ in _spans(layer))
            names = counted_spans(form, layer.indices)
            each = len(layer.indices) // sum(count for _, count in names)  # All experts of a block share one name.
            rows += [(name, f"{layer.kind}, {count * each:,}", own) for name, count in names]
        if not rows:
            return
        yield "# The layers of this model by their canonical names, and as the checkpoint calls them. `qkv_proj` and"
        yield "# `gate_up_proj` stand for all of their members."
        width, second = (max(len(row[column]) for row in rows) for column in (0, 1))
        for name, kind, own in rows[:_MOST_LINES]:
            yield _comment(f"  {name.ljust(width)}  {kind.ljust(second)}  {own}")
        if len(rows) > _MOST_LINES:
            yield _comment(f"  and {len(rows) - _MOST_LINES:,} more (policyquant inventory)")


_RULES: Final = (
    "# Rules. The last one that reaches a layer decides; layers that none reaches stay as they are stored. A name",
    "# covers everything inside that module; a layer goes by its name in the checkpoint, in the module tree, and by a",
    "# canonical one that is the same for all models. Remove the `#` in front of a rule to use it.",
)


def _spans(layer: LayerSet) -> list[tuple[str, int]]:
    return counted_spans(layer.names["checkpoint"][0], layer.indices)


def _parameters(layers: Sequence[LayerSet]) -> int | None:
    total = 0
    for layer in layers:
        if layer.parameters is None:
            return None
        total += 0 if layer.tied_to is not None else layer.parameters * len(layer.indices)
    return total


def _layers(count: int) -> str:
    return f"{count:,} layer{'' if count == 1 else 's'}"


def _short(parameters: int | None) -> str:
    if parameters is None:
        return "an unknown number of"
    for limit, unit in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if parameters >= limit:
            return f"{parameters / limit:.3g}{unit}"
    return str(parameters)


def _share(part: int | None, whole: int | None) -> str:
    return "" if part is None or not whole else f"{100 * part / whole:.1f} %"


def _comment(text: str, indent: int = 0) -> str:
    """A line of comment; nothing in a name can end it."""
    return f"{' ' * indent}# {printable(text)}"


def printable(text: str) -> str:
    """Text without anything that YAML or a terminal would take for more than a character."""
    return "".join(each if each.isprintable() else _escape(each) for each in text)


def quoted(text: str) -> str:
    """Text as a YAML key in double quotes."""
    return printable(json.dumps(text, ensure_ascii=False))


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
