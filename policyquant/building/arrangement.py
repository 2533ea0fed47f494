"""Where each part lies in what is stored: the model's own sizes say how many rows a part has, and which way round a
weight is stored if its shape leaves no doubt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from torch import nn

from policyquant.building.fused_layouts import why_not_divided
from policyquant.building.shares import Share
from policyquant.building.stored_names import FUSED_PARTS, StoredPart
from policyquant.building.stored_tensors import ExpertTensor, Place, expert_tensor
from policyquant.building.targets import Target
from policyquant.checkpoint.tensors import LazyTensor
from policyquant.errors import PolicyQuantError
from policyquant.inventory.layers import Indices
from policyquant.layers.base import WeightLayer

_Part = tuple[int, Indices, str]
"""Identity of a stored layer's set, its indices, and the part's projection."""


class Arrangement:
    """The places of all parts of one model."""

    def __init__(
        self,
        asked: Iterable[tuple[Target, Sequence[Share]]],
        tensors: Mapping[str, LazyTensor],
        model_type: str,
    ) -> None:
        """
        Args:
            asked: Every module with what is stored for it.
            tensors: Of the source, by name.
            model_type: Of the configuration, or the name of the family that names told; empty if unknown.
        """
        self._model_type = model_type
        self._rows: dict[_Part, int] = {}
        self._claimed: dict[tuple[int, Indices], set[tuple[str, int | None]]] = {}
        self._divided: dict[tuple[int, Indices], StoredPart] = {}
        self._transposed: dict[int, bool] = {}
        """By set of layers that hold experts, and under 0 for all weights that a family stores [in, out]: whether the
        shapes that leave no doubt say so."""
        asked = list(asked)
        for target, shares in asked:
            for share in shares:
                self._note_rows(target.module, share)
        for target, shares in asked:
            if isinstance(target.module, (nn.Linear, WeightLayer)):
                for share in shares:
                    self._note_orientation(target.module, share, tensors)

    def _note_rows(self, module: nn.Module, share: Share) -> None:
        stored = share.stored
        if stored.whole or share.beside is not None:
            return
        rows = _own_rows(module, share)
        if rows is not None:
            self._rows[id(stored.layer), stored.indices, stored.projection] = rows
        key = (id(stored.layer), stored.indices)
        self._divided[key] = stored
        self._claimed.setdefault(key, set()).add((stored.projection, stored.expert))

    def _note_orientation(
        self, module: nn.Linear | WeightLayer, share: Share, tensors: Mapping[str, LazyTensor]
    ) -> None:
        layer = share.stored.layer
        if not layer.transposed and layer.kind != "moe":
            return
        for suffix, name in share.stored.tensor_names(tensors):
            what = expert_tensor(layer, suffix)
            if suffix != "weight" and (what is None or what.word != "weight" or not _holds(what, share)):
                continue
            try:
                place = self.place(module, share, what)
            except PolicyQuantError:
                continue
            shape, logical = tensors[name].shape[-2:], (sum(place.rows), module.in_features)
            if logical in (shape, shape[::-1]) and shape[0] != shape[1]:
                self._transposed[0 if what is None else id(layer)] = shape != logical

    def place(self, module: nn.Module, share: Share, what: ExpertTensor | None) -> Place:
        """Where a share lies in one of its layer's tensors, of which `what` says what it is.

        Raises:
            PolicyQuantError: its rows do not lie one after another, or it is not known which are its own.
        """
        stored = share.stored
        rows, index, names = self._inside(module, share, what)
        experts = expert = None
        if what is not None:
            own = module.num_experts if isinstance(module, WeightLayer) else None
            repeats = 0 if stored.part is None else stored.part.repeats
            experts = own or repeats or None
            expert = stored.expert if stored.expert is not None else share.part.expert
        transposed = False
        if isinstance(module, (nn.Linear, WeightLayer)):
            flagged = stored.layer.transposed
            key = 0 if what is None else id(stored.layer)
            transposed = self._transposed.get(key, flagged) and (what is not None or flagged)
        return Place(rows, index, names, experts, expert, transposed)

    def _inside(
        self, module: nn.Module, share: Share, what: ExpertTensor | None
    ) -> tuple[Sequence[int], int, Sequence[str]]:
        """Rows of each part in the tensor, which of them the share is, and their names."""
        stored, own = share.stored, _own_rows(module, share) or 0
        if share.beside is not None:
            assert isinstance(module, WeightLayer)
            self._refuse_interleaved(stored, what, len(share.beside), named_alike=True)
            return list(module.parts.values()), share.beside.index(share.part.part), share.beside
        if stored.whole:
            return [own], 0, [share.part.name]
        if what is None:
            inside: Sequence[str] = [part.role.rpartition(".")[2] for part in stored.layer.parts]
        else:
            inside = FUSED_PARTS.get(what.projection, (what.projection,))
        self._refuse_interleaved(stored, what, len(inside))
        rows = []
        for projection in inside:
            known = self._rows.get((id(stored.layer), stored.indices, projection))
            shape = next((p.shape for p in stored.layer.parts if p.role.rpartition(".")[2] == projection), None)
            if known is None and not shape:
                raise PolicyQuantError(
                    f"{stored.name!r} holds {', '.join(inside)}, and neither the model nor the source tells how many"
                    f" rows {projection} has"
                )
            rows.append(known if known is not None else (shape or (0,))[-2])
        return rows, inside.index(stored.projection), inside

    def _refuse_interleaved(
        self, stored: StoredPart, what: ExpertTensor | None, parts: int, *, named_alike: bool = False
    ) -> None:
        if parts < 2:
            return
        spelling = stored.name.rpartition(".")[2] if what is None else what.projection
        reason = why_not_divided(spelling, self._model_type, named_alike=named_alike)
        if reason is not None:
            tensor = stored.name if what is None else f"{stored.name}.{what.projection}"
            raise PolicyQuantError(f"{tensor!r} cannot be taken apart: {reason}")

    def divisible(self, stored: StoredPart) -> bool:
        """Whether the parts of a layer that is stored fused lie one after another."""
        return why_not_divided(stored.name.rpartition(".")[2], self._model_type) is None

    def unclaimed(self) -> Iterator[str]:
        """Parts of stored layers that nothing in the model takes, while it takes others of the same layer."""
        for key, stored in self._divided.items():
            every = [
                (part.role.rpartition(".")[2], expert)
                for part in stored.layer.parts
                for expert in (range(part.repeats) if part.repeats else (None,))
            ]
            left = [each for each in every if each not in self._claimed[key]]
            if left:
                projection, expert = left[0]
                which = f"{projection} of expert {expert}" if expert is not None else projection
                more = f" and {len(left) - 1:,} more parts" if len(left) > 1 else ""
                yield f"{stored.name!r} holds {which}{more}, but nothing in the model takes it"


def _own_rows(module: nn.Module, share: Share) -> int | None:
    """Rows that the share has in the model; None if that is not known."""
    if isinstance(module, WeightLayer) and share.part.part in module.parts:
        return module.parts[share.part.part]
    if isinstance(module, (nn.Linear, nn.Embedding)) and not share.parameter:
        weight = module._parameters.get("weight")
        return None if weight is None else weight.shape[0]
    return None


def _holds(what: ExpertTensor, share: Share) -> bool:
    """Whether a tensor of experts holds the share."""
    projection = share.stored.projection or share.part.name.rpartition(".")[2]
    return projection in (what.projection, *FUSED_PARTS.get(what.projection, ()))


def concerns(what: ExpertTensor | None, share: Share) -> bool:
    """Whether a tensor of a stored layer is about the share at all, and not about another projection."""
    return what is None or _holds(what, share)
