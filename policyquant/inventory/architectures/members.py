"""Which place of the architecture each stored layer takes, with prediction layers told from the decoder's."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from policyquant.inventory.architectures.family import Entry, Family
from policyquant.inventory.config_file import levels
from policyquant.inventory.layers import INDEX, Indices, StoredSet

_DECODER = f"decoder.{INDEX}."
_PREDICTION = f"mtp.{INDEX}."


@dataclass(frozen=True, eq=False, slots=True)
class Member:
    """Stored layers and what the family knows about them."""

    stored: StoredSet
    indices: tuple[Indices, ...]
    entry: Entry
    canonical: str
    """As the entry has it, or moved from `decoder` to `mtp`."""
    offset: int = 0
    """What is subtracted from the first index in the canonical name."""
    prediction: bool = False


def place_members(
    sets: Iterable[StoredSet], family: Family, config: Mapping[str, object], *, as_module: bool
) -> tuple[list[Member], list[StoredSet]]:
    """Match stored layers with a family's entries; the second result is those that it does not know."""
    members: list[Member] = []
    unknown: list[StoredSet] = []
    for stored in sets:
        entries = family.spellings.find(stored.template, as_module=as_module)
        if len(entries) == 1 and not entries[0].fixed and entries[0].blocks is None:
            members.append(Member(stored, stored.indices, entries[0], entries[0].canonical))
            continue
        rest: Sequence[Indices] = stored.indices
        for entry in entries:
            chosen = tuple(indices for indices in rest if entry.fits(indices))
            if chosen:
                members.append(Member(stored, chosen, entry, entry.canonical))
                rest = [indices for indices in rest if not entry.fits(indices)]
        if rest:
            unknown.append(StoredSet(stored.template, tuple(rest), stored.tensors))
    return list(_with_predictions(members, config)), unknown


def _with_predictions(members: Sequence[Member], config: Mapping[str, object]) -> Iterator[Member]:
    """Move blocks behind the decoder's last to `mtp`, where the model has such."""
    lists = {_block_list(m.entry) for m in members if m.canonical.startswith(_DECODER)}
    starts = [m.indices[0][0] for m in members if m.canonical.startswith(_PREDICTION) and _block_list(m.entry) in lists]
    if _count(config, "num_nextn_predict_layers"):
        starts += [count] if (count := _count(config, "num_hidden_layers")) else []
    start = min(starts, default=None)
    for member in members:
        if member.canonical.startswith(_PREDICTION):
            offset = start if start is not None and _block_list(member.entry) in lists else 0
            yield Member(member.stored, member.indices, member.entry, member.canonical, offset, prediction=True)
        elif (
            start is not None
            and member.canonical.startswith(_DECODER)
            and len(lists) == 1
            and member.indices[-1][0] >= start
        ):
            cut = bisect_left(member.indices, (start,))
            if cut:
                yield Member(member.stored, member.indices[:cut], member.entry, member.canonical)
            canonical = _PREDICTION + member.canonical.removeprefix(_DECODER)
            yield Member(member.stored, member.indices[cut:], member.entry, canonical, start, prediction=True)
        else:
            prediction = member.canonical.startswith("mtp.")
            yield Member(member.stored, member.indices, member.entry, member.canonical, prediction=prediction)


def _block_list(entry: Entry) -> str:
    return entry.checkpoint.partition(INDEX)[0]


def _count(config: Mapping[str, object], key: str) -> int:
    for level in levels(config):
        value = level.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return 0


def leading(indices: Sequence[Indices], length: int) -> Iterator[Indices]:
    """The distinct first `length` indices of sorted index tuples, found by jumps, not by looking at each."""
    start = 0
    while start < len(indices):
        head = indices[start][:length]
        yield head
        start = bisect_left(indices, (*head[:-1], head[-1] + 1), start) if head else len(indices)
