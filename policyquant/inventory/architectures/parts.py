"""One set of layers built from its tensors: parts, shapes, sizes, groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Final

from policyquant.inventory.architectures.family import Family
from policyquant.inventory.architectures.groups import group_of
from policyquant.inventory.architectures.members import Member
from policyquant.inventory.architectures.naming import Namer, Names
from policyquant.inventory.architectures.vocabulary import CACHING_TOWERS, FUSED_PARTS, Place
from policyquant.inventory.dtypes import stored_bytes
from policyquant.inventory.layers import INDEX, LayerSet, Part, StoredTensor
from policyquant.inventory.part_shapes import expert_count, halves, qkv_shapes, width
from policyquant.inventory.stored_formats import EXPERT_PARAMETERS, Recognised, StoredWeight, recognise

Shape = tuple[int, ...]

PROJECTIONS: Final[Mapping[str, str]] = {
    "gate_up_proj": "gate_up_proj",
    "w13": "gate_up_proj",
    "gate_proj": "gate_proj",
    "w1": "gate_proj",
    "up_proj": "up_proj",
    "w3": "up_proj",
    "v1": "up_proj",
    "down_proj": "down_proj",
    "w2": "down_proj",
}
"""What the parameters of a module that holds all experts are called → last part of their place."""

_BUFFERS: Final = frozenset({"masked_bias", "running_mean", "running_var", "num_batches_tracked"})
"""Stored, but no parameters."""


def build_layer(member: Member, namer: Namer, family: Family, config: Mapping[str, object]) -> LayerSet:
    """Everything about one set of stored layers but its readers and its ties."""
    entry, where = member.entry, namer.place
    own = family.weights.get(entry.checkpoint)
    names = EXPERT_PARAMETERS if own is None else {own}
    kind = family.kinds.get(entry.checkpoint) or (where.role.kind if where.role else "other")
    recognised = recognise(member.stored, config, names)
    if kind != "norm":
        recognised = _without_vectors(recognised)
    weights = [
        (weight, *_logical_shape(weight, entry.checkpoint, family, config, where)) for weight in recognised.weights
    ]
    plain_rest = [t for t in recognised.rest if not _is_buffer(t, kind)]
    main = max(weights, key=lambda each: each[0].elements or 0, default=None)
    shape, transposed = (main[1], main[2]) if main else (_shape_without_weight(recognised.rest, kind), False)
    layer_names, parts = _parts(
        namer, [(weight.parameter, shape) for weight, shape, _ in weights], shape, family, config
    )
    every = member.stored.tensors
    return LayerSet(
        kind=kind,
        indices=member.indices,
        names=layer_names,
        parts=tuple(parts),
        tensors=every,
        shape=shape,
        dtype=main[0].tensor.dtype if main else next((t.dtype for t in recognised.rest), None),
        parameters=_sum(
            [
                *(weight.elements for weight in recognised.weights),
                *(None if t.shape is None else prod(t.shape) for t in plain_rest),
            ]
        ),
        weight_elements=_sum([weight.elements for weight in recognised.weights]),
        bytes=_sum([stored_bytes(t.dtype, t.shape) for t in every]),
        weight_bytes=_sum([weight.bytes for weight in recognised.weights]),
        stored=main[0].scheme if main else None,
        has_kv_cache=kind == "attention" and where.tower in CACHING_TOWERS,
        prediction=member.prediction,
        transposed=transposed,
    )


def _parts(
    namer: Namer,
    weights: Sequence[tuple[str, Shape | None]],
    shape: Shape | None,
    family: Family,
    config: Mapping[str, object],
) -> tuple[Names, list[Part]]:
    """The layer's own names, and its parts."""
    where = namer.place
    if where.relative == "moe.experts" and any(parameter != "weight" for parameter, _ in weights):
        gated = any(_projection(parameter) in ("gate_proj", "gate_up_proj") for parameter, _ in weights)
        return namer.layer(), [part for each in weights for part in _expert_parts(namer, *each, config, gated=gated)]
    pieces = FUSED_PARTS.get(where.relative)
    if pieces is None or (where.relative.startswith("moe.experts.") and not _is_one_expert(namer)):
        names = namer.plain()
        group = group_of(where, where.relative, gated=namer.gated)
        return names, [Part(namer.canonical, names, shape, group=group)]
    shapes: Sequence[Shape | None]
    if len(pieces) == 3:
        equal = where.tower in family.equal_parts
        shapes = qkv_shapes(shape, config, where.tower, equal=equal)
    else:
        shapes = halves(shape)
    container = where.relative.rpartition(".")[0]
    parts = []
    for piece, part_shape in zip(pieces, shapes, strict=True):
        relative = f"{container}.{piece}"
        group = group_of(where, relative, gated=True)
        parts.append(Part(where.prefix + relative, namer.fused_part(piece), part_shape, group=group))
    return namer.layer(), parts


def _expert_parts(
    namer: Namer, parameter: str, shape: Shape | None, config: Mapping[str, object], *, gated: bool
) -> Iterator[Part]:
    projection = _projection(parameter)
    singly = namer.entry.experts or {}
    pieces = ("gate_proj", "up_proj") if projection == "gate_up_proj" else (projection,)
    count = shape[0] if shape is not None and len(shape) == 3 else expert_count(config)
    if count and all(piece in singly for piece in pieces):
        one = shape[1:] if shape is not None else None
        for piece, part_shape in zip(pieces, halves(one) if len(pieces) == 2 else (one,), strict=True):
            own = f"{namer.canonical}.{piece}"
            yield Part(
                own,
                namer.repeated_expert_part(own, singly[piece], gated="gate_proj" in singly),
                part_shape,
                count,
                group_of(namer.place, f"moe.experts.{piece}", gated=gated),
            )
    else:
        yield Part(
            f"{namer.canonical}.{projection}",
            namer.expert_part(parameter, projection),
            shape,
            group=group_of(namer.place, f"moe.experts.{projection}", gated=gated),
        )


def _projection(parameter: str) -> str:
    """Last part of the place of a parameter of a module that holds all experts."""
    return PROJECTIONS.get(parameter.removesuffix("_weight"), parameter)


def _is_one_expert(namer: Namer) -> bool:
    return namer.entry.checkpoint.count(INDEX) > namer.place.block_indices


def _logical_shape(
    weight: StoredWeight, checkpoint: str, family: Family, config: Mapping[str, object], where: Place
) -> tuple[Shape | None, bool]:
    """Logical shape [..., out, in] of a weight, and whether it is stored with the last two swapped."""
    name = f"{checkpoint}.{weight.tensor.suffix}"
    transposed = name in family.transposed or f"{family.base}.{name}" in family.transposed
    shape = weight.shape
    if where.relative == "moe.experts" and not family.transposed and shape is not None and len(shape) == 3:
        transposed = _stored_in_out(weight.parameter, shape, width(config, where.tower))
    if transposed and shape is not None and len(shape) >= 2:
        shape = (*shape[:-2], shape[-1], shape[-2])
    return shape, transposed


def _stored_in_out(parameter: str, shape: Shape, hidden: int | None) -> bool:
    """Whether 3-D experts are [experts, in, out], told by which side is the residual stream's."""
    if hidden is None or shape[-1] == shape[-2]:
        return False
    reads_residual = _projection(parameter) != "down_proj"
    return shape[-2 if reads_residual else -1] == hidden and shape[-1 if reads_residual else -2] != hidden


def _without_vectors(recognised: Recognised) -> Recognised:
    """Tensors with one dimension or none are parameters, but no weight that could be quantized."""
    vectors = [weight for weight in recognised.weights if weight.shape is not None and len(weight.shape) < 2]
    if not vectors:
        return recognised
    return recognised._replace(
        weights=tuple(weight for weight in recognised.weights if weight not in vectors),
        rest=(*(weight.tensor for weight in vectors), *recognised.rest),
    )


def _shape_without_weight(rest: Sequence[StoredTensor], kind: str) -> Shape | None:
    """() unless it is a norm whose weight has another name."""
    if kind == "norm":
        for tensor in rest:
            if tensor.suffix in ("gamma", "scale", "g"):
                return tensor.shape
    return ()


def _is_buffer(tensor: StoredTensor, kind: str) -> bool:
    # An attention module's own `bias` is the causal mask of old GPT files; its projections own the real ones.
    return tensor.suffix in _BUFFERS or (kind == "attention" and tensor.suffix == "bias")


def _sum(values: Sequence[int | None]) -> int | None:
    return None if None in values else sum(value for value in values if value is not None)
