"""Layers as a plan's file lists them → rows, folded as resolution had them.

Neighbours in the file that are alike in all but their indices are one row. What their names, groups and parts have to
do with one another is recovered too: that `mtp.0` is `model.layers.61` less 61, or that all experts of a block belong
to one group.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from policyquant.errors import SourceError
from policyquant.inventory.collapse import Templates
from policyquant.inventory.layers import INDEX, Indices, NameForm, own_name
from policyquant.plan.json_values import Place
from policyquant.plan.layer_json import row_from_json
from policyquant.plan.rows import Row

_Source = tuple[int, int]
"""Where the number in a name comes from: which index of the layer, and what is subtracted from it."""

_MOST_INDICES: Final = 8
"""Of one name. Models have two (block, expert); each number of one name is compared with each index of another."""


def fold_layers(layers: Iterable[tuple[Place, Any]]) -> tuple[Row, ...]:
    """The rows of layers that come as JSON values with their places.

    Raises:
        SourceError: a layer is not what `plan.schema.json` says, or one name stands twice.
    """
    templates = Templates()
    seen: dict[str, set[Indices]] = {}
    rows: list[Row] = []
    run: _Run | None = None
    for place, layer in layers:
        names = _Names(layer, place, templates)
        known = seen.setdefault(names.template, set())
        if names.indices in known:
            raise place.key("name").error("a layer of this name stands in the plan already")
        known.add(names.indices)
        if run is None or not run.takes(layer, names):
            if run is not None:
                rows.append(run.row())
            run = _Run(layer, place, names)
            run.row()  # The first of a run is checked where it stands; the others are equal to it.
    if run is not None:
        rows.append(run.row())
    return tuple(rows)


class _Names:
    """The names in one layer's JSON value, taken out of it: templates take their places."""

    def __init__(self, layer: Any, place: Place, templates: Templates) -> None:
        if not isinstance(layer, dict):
            raise place.unexpected("an object", layer)
        name = layer.get("name")
        if not isinstance(name, str):
            raise place.key("name").unexpected("a string", name)
        self.template, self.indices = self._fold(name, place.key("name"), templates)
        layer["name"] = self.template
        self.others: list[tuple[str, Indices]] = []
        """The group's, if there is one, and each part's."""
        group = layer.get("group")
        self.has_group = group is not None
        if group is not None:
            layer["group"] = self._add(group, place.key("group"), templates)
        parts = layer.get("parts")
        for index, part in enumerate(parts if isinstance(parts, list) else ()):
            at = place.key("parts").item(index)
            if not isinstance(part, dict):
                raise at.unexpected("an object", part)
            part["name"] = self._add(part.get("name"), at.key("name"), templates)

    def _add(self, name: Any, place: Place, templates: Templates) -> str:
        if not isinstance(name, str):
            raise place.unexpected("a string", name)
        self.others.append(self._fold(name, place, templates))
        return self.others[-1][0]

    @staticmethod
    def _fold(name: str, place: Place, templates: Templates) -> tuple[str, Indices]:
        try:
            template, indices = templates[name]
        except SourceError as error:
            raise place.error(str(error)) from None
        if len(indices) > _MOST_INDICES:
            raise place.error(f"a name with more than {_MOST_INDICES} indices")
        return template, indices


class _Run:
    """Neighbours that are one row so far."""

    def __init__(self, layer: dict[str, Any], place: Place, names: _Names) -> None:
        self.layer = layer
        self.text = repr(layer)  # Unlike ==, it tells 1 from true and from 1.0.
        self.place = place
        self.names = names
        self.indices = [names.indices]
        self.sources = [
            [{(position, index - number) for position, index in enumerate(names.indices)} for number in numbers]
            for _, numbers in names.others
        ]
        """For each number of each other name, where it can come from."""

    def takes(self, layer: dict[str, Any], names: _Names) -> bool:
        """Add one more layer, if it is like the others."""
        if repr(layer) != self.text:
            return False
        indices = names.indices
        narrowed = []
        for sources_of_name, (_, numbers) in zip(self.sources, names.others, strict=True):
            of_name = []
            for sources, number in zip(sources_of_name, numbers, strict=True):
                left = {source for source in sources if indices[source[0]] - source[1] == number}
                if not left:
                    return False
                of_name.append(left)
            narrowed.append(of_name)
        self.sources = narrowed
        self.indices.append(indices)
        return True

    def row(self) -> Row:
        forms = [
            _form(template, numbers, sources)
            for (template, numbers), sources in zip(self.names.others, self.sources, strict=True)
        ]
        group = forms.pop(0) if self.names.has_group else None
        return row_from_json(self.layer, self.place, own_name(self.names.template), tuple(self.indices), group, forms)


def _form(template: str, numbers: Indices, sources: list[set[_Source]]) -> NameForm:
    """How to fill a name. A number that no index of the layer explains (a layer without any) stays as it is."""
    pieces = template.split(INDEX)
    text = pieces[0]
    chosen: list[_Source] = []
    for number, possible, piece in zip(numbers, sources, pieces[1:], strict=True):
        if possible:
            chosen.append(min(possible, key=lambda source: (abs(source[1]), source[0])))
        text += (INDEX if possible else str(number)) + piece
    return NameForm(text, tuple(position for position, _ in chosen), tuple(offset for _, offset in chosen))
