"""`policyquant match`: which layers a pattern reaches."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from policyquant.cli import output
from policyquant.cli.arguments import add_json, add_model, example
from policyquant.cli.given import what_is
from policyquant.cli.opening import open_model
from policyquant.cli.patterns import compile_pattern, reaches_nothing
from policyquant.cli.sizes_text import count_text
from policyquant.cli.status import Status
from policyquant.cli.tables import Column, Table, print_table
from policyquant.errors import PolicyQuantError
from policyquant.inventory.layers import Indices, LayerSet, Namespace
from policyquant.inventory.ranges import Ranges, count
from policyquant.inventory.spans import counted_spans, spans
from policyquant.plan.context import Context
from policyquant.plan.matching import Match
from policyquant.plan.resolve import resolve
from policyquant.plan.units import Unit
from policyquant.policy.load import load_policy
from policyquant.policy.patterns import Pattern

_COLUMNS = (
    Column("name", fold=True, code=True),
    Column("layers", right=True),
    Column("kind", style="dim"),
    Column("parts", fold=True, code=True),
    Column("reached as", fold=True, code=True),
    Column("protected", fold=True),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.description = (
        "List the layers that a pattern reaches, and by which of their names. For protected kinds (heads, embeddings,"
        " routers)\nsay whether the pattern names them, without which no rule quantizes them. Reaching nothing gives"
        " exit status 1."
    )
    parser.epilog = example("match 'decoder.*.moe' path/to/model", "match 'model.layers.{0..3,-4..-1}' path/to/model")
    parser.add_argument("pattern", metavar="PATTERN", help="a pattern, as in a policy; quote it for the shell")
    add_model(parser)
    add_json(parser)


@dataclass(frozen=True, slots=True)
class _Reached:
    """Layers of one set in which a pattern reaches the same parts in the same way."""

    layer: LayerSet
    positions: Ranges
    """Of the layers, among `layer.indices`."""
    units: tuple[Unit, ...]
    """Their parts that it reaches."""
    named: str
    """Whether it names them, where that matters."""

    @property
    def indices(self) -> list[Indices]:
        """Indices of the layers."""
        return [self.layer.indices[i] for start, stop in self.positions for i in range(start, stop)]

    @property
    def parts(self) -> list[str]:
        """Last parts of the names of what it reaches, for a layer that stores several things."""
        if len(self.layer.parts) == 1:
            return []
        return [unit.part.names["checkpoint"][0].template.rpartition(".")[2] for unit in self.units]


def run(arguments: argparse.Namespace) -> int:
    """Print what the pattern reaches."""
    word, model = arguments.pattern, arguments.model
    pattern = compile_pattern(word)
    try:
        inventory = open_model(model)
    except PolicyQuantError:
        if what_is(word) != "model" or what_is(model) == "model":
            raise
        message = f"{word}: a model; match takes the pattern first: policyquant match '{model}' {word}"
        raise PolicyQuantError(message) from None
    plan = resolve(load_policy({"version": 1}), inventory)
    context = plan.context
    assert context is not None
    match = context.matcher.match(pattern)
    reached = list(_reached(context, match))
    if arguments.json:
        output.write_json(_json(match, reached))
    if match.namespace is None:
        output.error(reaches_nothing(pattern, context))
        return Status.NO
    if not arguments.json:
        rows = [row for each in reached for row in _rows(each, match.namespace)]
        print_table(Table(_COLUMNS, rows).without_empty_columns())
        output.write(f"\n{count_text(_layers(reached), 'layer')}, by {match.namespace} names\n")
    for namespace, more in match.elsewhere:
        output.note(
            f"note: {namespace} names would add {', '.join(context.spans(more))}; a pattern belongs to the first of"
            " checkpoint, module and canonical names in which it reaches anything"
        )
    return Status.FINE


def _reached(context: Context, match: Match) -> Iterator[_Reached]:
    if match.namespace is None:
        return
    alike: dict[tuple[LayerSet, Ranges, str], list[Unit]] = {}
    for number, ranges in match.reach.items():
        unit = context.units[number]
        word = _named(context, match.pattern, match.namespace, unit, ranges)
        alike.setdefault((unit.layer, unit.layer_ranges(ranges), word), []).append(unit)
    for (layer, positions, word), units in alike.items():
        yield _Reached(layer, positions, tuple(units), word)


def _named(context: Context, pattern: Pattern, namespace: Namespace, unit: Unit, ranges: Ranges) -> str:
    if unit.layer.kind not in context.policy.protect:
        return ""
    named = count(context.matcher.trees[namespace].named(pattern, unit, ranges))
    if named in (0, count(ranges)):
        return "named" if named else "covered, not named"
    return f"{named} of {count(ranges)} named"


def _rows(reached: _Reached, namespace: Namespace) -> Iterator[tuple[str, ...]]:
    indices = reached.indices
    names = counted_spans(reached.layer.names["checkpoint"][0], indices)
    seen = ""
    if namespace != "checkpoint":
        forms = reached.layer.names.get(namespace) or reached.units[0].part.names[namespace]
        seen = ", ".join(spans(forms[0], indices)) if max((*forms[0].positions, -1)) < len(indices[0]) else ""
    for name, number in names:
        yield (name, f"{number:,}", reached.layer.kind, ", ".join(reached.parts), seen, reached.named)


def _layers(reached: Sequence[_Reached]) -> int:
    positions: dict[LayerSet, set[int]] = {}
    for each in reached:
        members = positions.setdefault(each.layer, set())
        members.update(i for start, stop in each.positions for i in range(start, stop))
    return sum(map(len, positions.values()))


def _json(match: Match, reached: Sequence[_Reached]) -> Iterator[str]:
    head = {"pattern": match.pattern.text, "namespace": match.namespace, "count": _layers(reached)}
    yield json.dumps(head, ensure_ascii=False)[:-1] + ', "layers": ['
    separator = "\n "
    for each in reached:
        rest = json.dumps({"kind": each.layer.kind, "parts": each.parts}, ensure_ascii=False)[1:]
        for name in each.layer.names["checkpoint"][0].fill_all(each.indices):
            yield f'{separator}{{"name": {json.dumps(name, ensure_ascii=False)}, {rest}'
            separator = ",\n "
    yield "\n]}\n"
