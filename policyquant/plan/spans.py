"""Members of a unit as few names; see `policyquant.inventory.spans`."""

from __future__ import annotations

from policyquant.inventory.layers import LayerSet
from policyquant.inventory.ranges import Ranges
from policyquant.inventory.spans import fill_box, spans
from policyquant.plan.units import Unit


def unit_spans(unit: Unit, ranges: Ranges) -> list[str]:
    """The checkpoint names of members of a unit as spans; of their layers, for parts that have none."""
    form = next(iter(unit.part.names.get("checkpoint", ())), None)
    if form is None:
        return layer_spans(unit.layer, unit.layer_ranges(ranges))
    if form.positions == tuple(range(len(unit.indices[0]))) and not any(form.offsets):
        return [fill_box(form.template, box) for box in unit.tree.boxes(ranges)]
    return spans(form, [unit.indices[i] for start, stop in ranges for i in range(start, stop)])


def layer_spans(layer: LayerSet, ranges: Ranges) -> list[str]:
    """The checkpoint names of some layers (positions in `layer.indices`) as spans."""
    return spans(layer.names["checkpoint"][0], [i for start, stop in ranges for i in layer.indices[start:stop]])
