"""What to say about a model of which not everything is known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from policyquant.findings import Finding
from policyquant.inventory.architectures import architectures
from policyquant.inventory.architectures.family import Family, Row, without_numbers
from policyquant.inventory.architectures.vocabulary import place
from policyquant.inventory.kinds import Kind
from policyquant.inventory.layers import StoredModel, StoredSet, own_name
from policyquant.inventory.spans import spans


class What(NamedTuple):
    """What was guessed."""

    layers: Mapping[str, str]
    """Checkpoint template → canonical template."""
    rows: Sequence[Row]
    """The same where it holds for some blocks only."""
    kinds: Mapping[str, Kind]
    """Checkpoint template → kind, where the place does not tell it."""
    unclear: Sequence[str]
    """Templates of which neither the place nor the kind is known."""


def findings(
    model: StoredModel, stored: Sequence[StoredSet], unknown: Sequence[StoredSet], family: Family | None, what: What
) -> Iterator[Finding]:
    """What was not known of the layers that are `unknown` to `family`."""
    members: dict[str, list[StoredSet]] = defaultdict(list)
    for each in stored:
        members[each.template].append(each)
    if family is None:
        name = model.config.get("model_type") or ", ".join(architectures(model.config))
        said = f"the model type {name!r}" if name else "a model without a configuration"
        yield Finding(
            "PQ452",
            "note",
            f"no architecture data for {said}: kinds, groups and portable names follow common spellings",
        )
    else:
        yield Finding(
            "PQ453",
            "note",
            f"the data of {family.name} models does not know these layers; common spellings were used",
            _names((each.template for each in unknown), members),
        )
    if what.unclear:
        yield Finding(
            "PQ454",
            "note",
            "it is not known what these layers do; they have kind 'other' and cannot be quantized",
            _names(what.unclear, members),
        )
    if loose := _names(_ungrouped(what), members):
        yield Finding(
            "PQ455",
            "note",
            "it is not known whether engines fuse these projections; no group was applied",
            loose,
        )


def _ungrouped(what: What) -> Iterator[str]:
    """Rows of linear layers in attention or MLP modules whose place is not known."""
    rows = ((row.checkpoint, row.canonical) for row in what.rows)
    for name, canonical in (*rows, *what.layers.items()):
        where = place(canonical)
        if (
            where.role is None
            and what.kinds.get(without_numbers(name)[0]) == "linear"
            and where.relative.partition(".")[0] in ("attention", "cross_attention", "mlp", "moe")
        ):
            yield name


def _names(rows: Iterable[str], stored: Mapping[str, Sequence[StoredSet]]) -> tuple[str, ...]:
    """The stored layers of some rows, repeated ones written as index ranges."""
    names: list[str] = []
    for row in dict.fromkeys(rows):
        template, fixed = without_numbers(row)
        members = [
            indices
            for each in stored.get(template, ())
            for indices in each.indices
            if all(indices[position] == value for position, value in fixed)
        ]
        names += spans(own_name(template), members) if members else []
    return tuple(names)
