"""From a source as read to layers that are understood: kinds, names, parts, groups, readers, ties, sizes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from policyquant.findings import Finding
from policyquant.inventory.architectures import find_family
from policyquant.inventory.architectures.family import Entry, Family
from policyquant.inventory.architectures.groups import without_lone_groups
from policyquant.inventory.architectures.members import Member, leading, place_members
from policyquant.inventory.architectures.naming import Namer
from policyquant.inventory.architectures.parts import build_layer
from policyquant.inventory.architectures.ties import with_ties
from policyquant.inventory.architectures.vocabulary import CACHING_TOWERS, IMPLIED_BY, place
from policyquant.inventory.layers import INDEX, Indices, LayerSet, Part, StoredModel, StoredSet

NO_LAYERS: Final = frozenset(
    {
        "inv_freq",
        "original_inv_freq",
        "cos_cached",
        "sin_cached",
        "position_ids",
        "token_type_ids",
        "embed_positions_buffer",
    }
)
"""Tensors that some tools store although they are computed; a module that owns nothing else is no layer."""


@dataclass(frozen=True, slots=True)
class Description:
    """The layers of a model."""

    sets: tuple[LayerSet, ...]
    family: str | None
    """The family whose data was used; None if the model's own is not known."""
    findings: tuple[Finding, ...] = ()


def describe(model: StoredModel, *, use_family: bool = True) -> Description:
    """Apply architecture data to a source.

    Args:
        model: What was read.
        use_family: Whether data of the model's own family is used; if not, only what holds for unknown families is.

    Never fails: what is not known is said in the findings.
    """
    findings: list[Finding] = []
    stored = [each for each in model.sets if not _computed(each)]
    family = find_family(model.config, stored) if use_family else None
    as_module = model.naming == "module"
    members: list[Member] = []
    unknown: Sequence[StoredSet] = stored
    families: list[Family] = []
    if family is not None:
        families.append(family)
        members, unknown = place_members(stored, family, model.config, as_module=as_module)
    if unknown:
        from policyquant.inventory.architectures.fallback import infer

        inferred, notes = infer(model, stored, unknown, as_part_of=family)
        families.append(inferred)
        others, _ = place_members(unknown, inferred, model.config, as_module=as_module)
        members += others
        findings += notes
    # A set may have been divided since; its parts still have the same tensors.
    order = {id(each.tensors): at for at, each in enumerate(stored)}
    members.sort(key=lambda member: (order.get(id(member.stored.tensors), 0), member.indices[0]))

    present = {member.canonical for member in members}
    sets: list[LayerSet] = []
    owners: list[Entry] = []
    for member in members:
        owner = next(each for each in families if member.entry in each.spellings)
        namer = Namer(
            member.entry, member.canonical, member.offset, member.stored.template if as_module else None, present
        )
        sets.append(build_layer(member, namer, owner, model.config))
        owners.append(member.entry)
    added = [found for each in families for found in _implied(each, members, present)]
    added += [found for each in families for found in _listed(each, members, present, added)]
    for count, (before, layer, entry) in enumerate(sorted(added, key=lambda found: found[0])):
        sets.insert(before + count, layer)
        owners.insert(before + count, entry)
    result, tie_findings = with_ties(sets, owners, families, model)
    findings += tie_findings
    return Description(
        tuple(_with_readers(without_lone_groups(result), families, model.config)),
        family.name if family else None,
        tuple(findings),
    )


def _computed(stored: StoredSet) -> bool:
    return all(tensor.suffix in NO_LAYERS for tensor in stored.tensors)


def _implied(
    family: Family, members: Sequence[Member], present: Collection[str]
) -> Iterator[tuple[int, LayerSet, Entry]]:
    """Layers that own no tensor, each with the position of the stored layer before which it is listed."""
    stored: dict[str, set[Indices]] = {}
    by_canonical: dict[str, list[tuple[int, Member]]] = {}
    for at, member in enumerate(members):
        stored.setdefault(member.entry.checkpoint, set()).update(member.indices)
        by_canonical.setdefault(member.entry.canonical, []).append((at, member))
    for canonical, entries in family.spellings.by_canonical.items():
        where = place(canonical)
        names = [where.prefix + relative for relative in IMPLIED_BY.get(where.relative, ())]
        sources = sorted((found for name in names for found in by_canonical.get(name, ())), key=lambda found: found[0])
        # Of entries in the same module list, all have the same sources.
        known: dict[tuple[str, str, bool], list[tuple[int, Member]]] = {}
        heads: dict[tuple[tuple[str, str, bool], int], Mapping[int, Collection[Indices]]] = {}
        for entry in entries if sources else ():
            for prediction in (False, True):
                key = (entry.checkpoint.partition(INDEX)[0], entry.checkpoint.rpartition(".")[0], prediction)
                if INDEX in entry.checkpoint:
                    key = (key[0], "", prediction)
                if key not in known:
                    known[key] = [
                        (at, member)
                        for at, member in sources
                        if member.prediction is prediction and _same_list(member.entry.checkpoint, entry.checkpoint)
                    ]
                found = known[key]
                if not found:
                    continue
                length = entry.checkpoint.count(INDEX)
                if (key, length) not in heads:
                    heads[key, length] = _heads([member for _, member in found], length)
                own = stored.get(entry.checkpoint, ())
                here = {each for each in _indices(entry, heads[key, length]) if each not in own and entry.fits(each)}
                if entry.checkpoint in family.listed:
                    here.intersection_update(family.listed[entry.checkpoint])
                indices = sorted(here)
                if indices:
                    first = found[0][1]
                    yield found[0][0], _without_tensors(entry, tuple(indices), first, family, present), entry


def _listed(
    family: Family, members: Sequence[Member], present: Collection[str], added: Iterable[tuple[int, LayerSet, Entry]]
) -> Iterator[tuple[int, LayerSet, Entry]]:
    """The same for those that the source itself lists and whose neighbours do not show that they are there."""
    known: dict[str, set[Indices]] = {}
    for name, indices in (
        *((entry.checkpoint, layer.indices) for _, layer, entry in added),
        *((member.entry.checkpoint, member.indices) for member in members),
    ):
        known.setdefault(name, set()).update(indices)
    first: dict[str, int] = {"": 0}
    for at, member in enumerate(members):
        for name in _parents(member.entry.checkpoint):
            first.setdefault(name, at)
    for template, listed in family.listed.items():
        entry = next(iter(family.spellings.by_checkpoint.get(template, ())), None)
        indices = tuple(each for each in listed if each not in known.get(template, ()))
        if entry is None or not indices or not members:
            continue
        at = next(first[name] for name in _parents(template) if name in first)
        yield at, _without_tensors(entry, indices, members[at], family, present), entry


def _parents(name: str) -> Iterator[str]:
    """The modules around a layer, the nearest first; the last is the model itself."""
    while name:
        name = name.rpartition(".")[0]
        yield name


def _same_list(first: str, second: str) -> bool:
    """Whether two names have the same module list or, outside lists, the same parent."""
    if INDEX in first and INDEX in second and first.partition(INDEX)[0] == second.partition(INDEX)[0]:
        return True
    return first.rpartition(".")[0] == second.rpartition(".")[0]


def _heads(sources: Iterable[Member], length: int) -> Mapping[int, Collection[Indices]]:
    """The distinct first `length` indices of some layers, by the first of them."""
    result: dict[int, set[Indices]] = {}
    for member in sources:
        if member.entry.checkpoint.count(INDEX) >= length:
            for head in leading(member.indices, length):
                result.setdefault(head[0] if head else 0, set()).add(head)
    return result


def _indices(entry: Entry, heads: Mapping[int, Collection[Indices]]) -> Iterator[Indices]:
    """Those that an entry without tensors has; some may come twice."""
    for block in heads if entry.blocks is None else entry.blocks & heads.keys():
        for head in heads[block]:
            values = list(head)
            for position, value in entry.fixed:
                values[position] = value
            yield tuple(values)


def _without_tensors(
    entry: Entry, indices: tuple[Indices, ...], source: Member, family: Family, present: Collection[str]
) -> LayerSet:
    canonical = entry.canonical
    if source.canonical != source.entry.canonical:
        canonical = place(source.canonical).prefix + place(canonical).relative
    where = place(canonical)
    names = Namer(entry, canonical, source.offset, None, present).layer()
    role = where.role
    kind = family.kinds.get(entry.checkpoint) or (role.kind if role else "other")
    return LayerSet(
        kind=kind,
        indices=indices,
        names=names,
        parts=(Part(canonical, names, ()),),
        has_kv_cache=kind == "attention" and where.tower in CACHING_TOWERS,
        prediction=source.prediction,
    )


def _with_readers(
    sets: Sequence[LayerSet], families: Sequence[Family], config: Mapping[str, object]
) -> Iterator[LayerSet]:
    """Fill in `feeds`, of which only those readers are kept that the model has."""
    present = {part.role for layer in sets for part in layer.parts}
    overrides = {canonical: readers for family in families for canonical, readers in family.feeds.items()}
    post_norm = any(
        family.post_norm_when is not None and config.get(family.post_norm_when[0]) == family.post_norm_when[1]
        for family in families
    )
    for layer in sets:
        canonical = layer.names["canonical"][0].template if layer.names.get("canonical") else ""
        where = place(canonical)
        if canonical in overrides:
            readers = overrides[canonical]
        elif where.role is None or (post_norm and layer.kind == "norm"):
            readers = None
        else:
            readers = where.role.feeds
        if readers is not None:
            prefix = where.prefix if where.in_block else ""
            readers = tuple(name for reader in readers if (name := prefix + reader) in present)
        yield replace(layer, feeds=readers)
