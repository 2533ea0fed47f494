"""From decisions about parts to rows of layers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, pairwise

from policyquant.inventory.layers import GroupForm, Indices, LayerSet, NameForm
from policyquant.plan.context import Context
from policyquant.plan.decide import Decision
from policyquant.plan.history import Hit
from policyquant.plan.rows import PartRow, Row, RuleRef
from policyquant.plan.sizes import dtype_bytes, scheme_bytes
from policyquant.plan.units import Unit


def make_rows(context: Context) -> tuple[Row, ...]:
    """One row for each run of layers with the same decision, in the order of the inventory."""
    return tuple(row for layer, units in context.units_of_layer.items() for row in _layer_rows(context, layer, units))


def _layer_rows(context: Context, layer: LayerSet, units: list[Unit]) -> Iterator[Row]:
    by_decision: dict[Decision, list[tuple[int, int]]] = {}
    for start, stop in _runs(context, units):
        decision = context.assignment.at(units[0], units[0].members_of_layer(start)[0])
        by_decision.setdefault(decision, []).append((start, stop))
    for decision, runs in by_decision.items():
        indices = tuple(chain.from_iterable(layer.indices[start:stop] for start, stop in runs))
        yield _row(context, layer, units, decision, indices)


def _runs(context: Context, units: list[Unit]) -> Iterator[tuple[int, int]]:
    """Layers (positions) that no boundary of a decision about any of their parts separates."""
    cuts = {0, len(units[0].layer.indices)}
    for unit in units:
        size = max(1, unit.part.repeats)
        for start, _, _ in context.assignment.runs(unit):
            # A boundary inside a layer (between two experts of one tensor) separates that layer from both neighbours.
            cuts.update((start // size, -(-start // size)))
    return pairwise(sorted(cuts))


def _row(context: Context, layer: LayerSet, units: list[Unit], decision: Decision, indices: tuple[Indices, ...]) -> Row:
    stored_apart = layer.tied_to is None or context.policy.untie
    return Row(
        form=layer.names["checkpoint"][0],
        indices=indices,
        kind=layer.kind,
        shape=layer.shape,
        dtype=layer.dtype,
        stored=None if layer.stored is None else f"{layer.stored.method}: {layer.stored.description}",
        scheme=decision.scheme,
        decided_by=decision.decided_by,
        rule=rule_ref(context, decision.hit),
        refined_by=tuple(ref for hit in decision.refined_by if (ref := rule_ref(context, hit))),
        beaten=tuple(ref for hit in decision.beaten if (ref := rule_ref(context, hit))),
        group=_group_name(units),
        parts=_parts(layer, units),
        parameters=layer.parameters if layer.tied_to is None else 0,
        bytes_before=layer.bytes if layer.tied_to is None else 0,
        bytes_after=bytes_after(context, layer, units, decision) if stored_apart else 0,
    )


def rule_ref(context: Context, hit: Hit | None) -> RuleRef | None:
    """A hit as it is shown."""
    if hit is None:
        return None
    return RuleRef(context.text(hit), *context.rule(hit).location, hit.namespace)


def _group_name(units: list[Unit]) -> NameForm | None:
    """The group of a layer, or of its parts if they all share one."""
    groups = {unit.part.group for unit in units}
    group: GroupForm | None = groups.pop() if len(groups) == 1 else None
    if group is None:
        return None
    for form in units[0].part.names.get("canonical", ()):
        if form.template == group.label:
            return form
    return NameForm(group.label, group.positions, (0,) * len(group.positions))


def _parts(layer: LayerSet, units: list[Unit]) -> tuple[PartRow, ...]:
    if len(units) == 1 and not units[0].part.repeats:
        return ()
    shapes: dict[NameForm, list[tuple[int, ...] | None]] = {}
    for unit in units:
        shape = unit.part.shape
        if unit.part.repeats and shape is not None:
            shape = (unit.part.repeats, *shape)
        shapes.setdefault(_part_name(layer, unit), []).append(shape)
    return tuple(PartRow(form, _stacked(of_form)) for form, of_form in shapes.items())


def _part_name(layer: LayerSet, unit: Unit) -> NameForm:
    """A part's own checkpoint name; for all experts of a tensor, the parameter's, which gate and up can share."""
    forms = unit.part.names["checkpoint"]
    if not unit.part.repeats:
        return forms[0]
    width = len(layer.indices[0])
    for namespace in ("module", "canonical"):
        for form in unit.part.names.get(namespace, ()):
            if all(position < width for position in form.positions):
                return form
    return forms[0]


def _stacked(shapes: list[tuple[int, ...] | None]) -> tuple[int, ...] | None:
    """The shape of several weights [..., out, in] stored as one, along `out`."""
    known = [shape for shape in shapes if shape]
    if len(known) < len(shapes):
        return None
    *leading, _, columns = known[0]
    return (*leading, sum(shape[-2] for shape in known), columns)


def bytes_after(context: Context, layer: LayerSet, units: list[Unit], decision: Decision) -> int | None:
    """Bytes of one layer under a decision: what the method stores in place of the weight, and the rest as it is."""
    method = decision.scheme.method
    own = _storage(context, layer)
    if method == "none":
        return own.bytes
    if own.bytes is None or own.weight_bytes is None:
        return None
    rest = own.bytes - own.weight_bytes
    if method == "dequantize":
        if own.stored is None:
            return own.bytes
        return None if own.weight_elements is None else rest + own.weight_elements * dtype_bytes(context.model_dtype)
    total = rest
    for unit in units:
        shape = unit.part.shape
        if shape is None:
            shape = layer.shape if len(units) == 1 else None
        if shape is None:
            # Parts of unknown size: the whole layer at once differs at most in how blocks divide.
            return None if layer.shape is None else rest + scheme_bytes(decision.scheme, layer.shape)
        total += max(1, unit.part.repeats) * scheme_bytes(decision.scheme, shape)
    return total


def _storage(context: Context, layer: LayerSet) -> LayerSet:
    """The layer that owns a layer's storage: itself, or the one that it is tied to."""
    units = context.storages.get(layer.tied_to) if layer.tied_to is not None else None
    return layer if units is None else units[0].layer
