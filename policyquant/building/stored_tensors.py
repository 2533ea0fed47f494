"""From the tensors of one stored layer to those of one part of a module: rows, experts, and scales that go with them.

A stored layer may hold several parts (q, k and v; gate and up; the experts of a block). A part's weight and bias are
its rows. Its scales are its rows of per-channel scales, its entry of scales that are one for each part, or the one
scale that covers everything; what fits none of these is refused, since a scale that covers rows of two parts belongs to
neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from policyquant.checkpoint.tensors import LazyTensor
from policyquant.errors import PolicyQuantError
from policyquant.inventory.architectures.parts import PROJECTIONS
from policyquant.inventory.layers import LayerSet

_WORDS: Final = {
    "": "weight",
    "_bias": "bias",
    "_scale": "weight_scale",
    "_weight_scale": "weight_scale",
    "_scale_inv": "weight_scale_inv",
    "_weight_scale_inv": "weight_scale_inv",
    "_input_scale": "input_scale",
}
"""What follows the name of a parameter that holds all experts → what the tensor is for one expert."""


class ExpertTensor(NamedTuple):
    """What one tensor of a module that holds all experts is."""

    projection: str
    """`gate_up_proj`, `gate_proj`, `up_proj` or `down_proj`."""
    word: str
    """`weight`, `bias`, `weight_scale`, …"""


def expert_tensor(layer: LayerSet, suffix: str) -> ExpertTensor | None:
    """What a tensor of `layer` is, by its suffix; None for a layer that does not hold all experts of a block."""
    if layer.kind != "moe":
        return None
    for parameter in sorted(PROJECTIONS, key=len, reverse=True):
        # `w13_weight` is the weight of `w13`, and `w13_weight_scale` its scale.
        if suffix == parameter or suffix.startswith(f"{parameter}_"):
            rest = suffix[len(parameter) :]
            word = "weight" if rest == "_weight" else _WORDS.get(rest, rest.removeprefix("_"))
            return ExpertTensor(PROJECTIONS[parameter], word)
    return None


class Place(NamedTuple):
    """Where a part lies in a tensor."""

    rows: Sequence[int]
    """Rows of each part that the tensor holds, in order; one number if it holds just this part."""
    position: int
    """Which of them the part is."""
    names: Sequence[str]
    """What to call each of them."""
    experts: int | None = None
    """How many entries the tensor has, one for each expert; None if it has no such dimension."""
    expert: int | None = None
    transposed: bool = False
    """Whether the weight is stored [in, out]."""


def part_of(tensor: LazyTensor, word: str, place: Place) -> LazyTensor:
    """The part's rows of a stored tensor, or what else of it belongs to the part.

    Args:
        tensor: As stored.
        word: `weight`, `bias`, `weight_scale`, `input_scale`, …
        place: Where the part lies.

    Raises:
        PolicyQuantError: the tensor has not the parts' size, or a scale covers rows of several parts.
    """
    stored = tensor
    if place.experts is not None and place.expert is not None:
        tensor = _of_expert(tensor, word, place.experts, place.expert)
    # A scale for each channel of a weight [in, out] is [1, out].
    along_columns = word != "weight" and len(tensor.shape) == 2 and tensor.shape[0] == 1 < tensor.shape[1]
    if len(tensor.shape) == 2 and ((place.transposed and word == "weight") or along_columns):
        tensor = tensor.transposed()
    if len(place.rows) == 1:
        return tensor
    total = sum(place.rows)
    start = sum(place.rows[: place.position])
    if tensor.shape and tensor.shape[0] == total:
        return tensor.rows(start, start + place.rows[place.position])
    if word not in ("weight", "bias"):
        if all(size == 1 for size in tensor.shape):
            return tensor
        if tensor.shape in ((len(place.rows),), (len(place.rows), 1)):
            return tensor.rows(place.position, place.position + 1)
        raise PolicyQuantError(
            f"{stored.place} has shape {list(stored.shape)}, in which {_named(place.names)} have no scales of their"
            f" own; expected one scale, one for each of the {len(place.rows)} parts, or one for each of {total:,} rows"
        )
    raise PolicyQuantError(
        f"{stored.place} has shape {list(stored.shape)}, which holds no {_named(place.names)} with"
        f" {' + '.join(f'{rows:,}' for rows in place.rows)} rows"
    )


def _of_expert(tensor: LazyTensor, word: str, experts: int, expert: int) -> LazyTensor:
    if tensor.shape and tensor.shape[0] == experts:
        return tensor.expert(expert)
    if word not in ("weight", "bias") and all(size == 1 for size in tensor.shape):
        return tensor
    raise PolicyQuantError(
        f"{tensor.place} has shape {list(tensor.shape)}; the model has {experts:,} experts, expected {experts:,} in the"
        " first dimension"
    )


def _named(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + f" and {names[-1]}"
