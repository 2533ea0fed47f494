"""Rows: layers that are alike in all but their indices, with everything a plan says of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from operator import itemgetter
from typing import NamedTuple

from policyquant.errors import Location
from policyquant.inventory.kinds import Kind
from policyquant.inventory.layers import INDEX, Indices, NameForm, Namespace
from policyquant.inventory.spans import spans
from policyquant.plan.decide import DecidedBy
from policyquant.policy.scheme import Quantization, Scheme


class RuleRef(NamedTuple):
    """A rule, as it is shown: the pattern that reached the layer, and where the rule stands."""

    pattern: str
    file: str
    line: int | None
    column: int | None
    namespace: Namespace | None
    """None for a rule by kind alone."""

    @property
    def place(self) -> str:
        """`file:line:column`."""
        return str(Location(self.file, self.line, self.column))

    def as_json(self) -> dict[str, object]:
        """As in `plan.schema.json`."""
        return self._asdict()


class PartRow(NamedTuple):
    """A named part of a layer that stores several."""

    form: NameForm
    shape: tuple[int, ...] | None


@dataclass(frozen=True, eq=False)
class Row:
    """Layers alike in all but their indices. Sizes are of one of them."""

    form: NameForm
    """Their checkpoint names."""
    indices: tuple[Indices, ...]
    kind: Kind
    shape: tuple[int, ...] | None
    dtype: str | None
    stored: str | None
    """How they are stored, if quantized."""
    scheme: Scheme
    decided_by: DecidedBy
    rule: RuleRef | None
    refined_by: tuple[RuleRef, ...]
    beaten: tuple[RuleRef, ...]
    group: NameForm | None
    """The fused group they belong to, by its canonical name."""
    parts: tuple[PartRow, ...]
    parameters: int | None
    bytes_before: int | None
    bytes_after: int | None

    @property
    def parameters_after(self) -> int | None:
        """Parameters of one of them under the plan: a tied layer that is stored apart has its own from then on."""
        if self.parameters == 0 and self.bytes_before == 0 and self.bytes_after:
            return None if self.shape is None else prod(self.shape)
        return self.parameters

    @property
    def count(self) -> int:
        """How many layers it stands for."""
        return len(self.indices)

    @cached_property
    def members(self) -> frozenset[Indices]:
        """The same indices, for looking one up."""
        return frozenset(self.indices)

    def names(self) -> list[str]:
        """Checkpoint names of all its layers."""
        return self.form.fill_all(self.indices)

    def spans(self) -> list[str]:
        """Their names, repeated ones written as index ranges."""
        return spans(self.form, self.indices)

    def at(self, indices: Indices) -> LayerPlan:
        """The plan of one of its layers."""
        return LayerPlan(
            name=self.form.fill(indices),
            kind=self.kind,
            shape=self.shape,
            dtype=self.dtype,
            stored=self.stored,
            scheme=self.scheme,
            decided_by=self.decided_by,
            rule=self.rule,
            refined_by=self.refined_by,
            beaten=self.beaten,
            group=None if self.group is None else self.group.fill(indices),
            parts=tuple((part.form.fill(indices), part.shape) for part in self.parts),
            parameters=self.parameters,
            bytes_before=self.bytes_before,
            bytes_after=self.bytes_after,
        )

    def as_json_lines(self) -> Iterator[str]:
        """One JSON object a layer, as in `plan.schema.json`.

        The text is the same for all layers of the row but for the names, so it is made once, with places for the
        indices: that is what lets a plan of 46,000 layers be written in a fraction of a second.
        """
        pieces: list[str] = []
        numbers: list[tuple[int, int]] = []
        for piece in self._json_pieces():
            if isinstance(piece, str):
                pieces.append(piece.replace("%", "%%"))
            else:
                pieces.append(_json(piece.template).replace("%", "%%").replace(INDEX, "%d"))
                numbers.extend(zip(piece.positions, piece.offsets, strict=True))
        template = "".join(pieces)
        if not numbers:
            return iter([template % ()] * len(self.indices))
        if any(offset for _, offset in numbers):
            return (template % tuple([i[p] - o for p, o in numbers]) for i in self.indices)
        pick = itemgetter(*(position for position, _ in numbers))
        return (template % pick(indices) for indices in self.indices)

    def _json_pieces(self) -> Iterator[str | NameForm]:
        """The JSON text of one layer, and between its pieces the names to be filled in."""
        scheme = self.scheme
        before_group = {
            "kind": self.kind,
            "shape": self.shape,
            "dtype": self.dtype,
            "stored": self.stored,
            "method": scheme.method,
            "scheme": {
                "weight": None if scheme.weight is None else scheme.weight.as_json(),
                "input": None if scheme.input is None else scheme.input.as_json(),
            },
            "output": scheme.output.as_json() if isinstance(scheme.output, Quantization) else scheme.output,
            "kv_cache": None if scheme.kv_cache is None else scheme.kv_cache.as_json(),
            "decided_by": self.decided_by,
            "rule": None if self.rule is None else self.rule.as_json(),
            "refined_by": [rule.as_json() for rule in self.refined_by],
            "beaten": [rule.as_json() for rule in self.beaten],
        }
        sizes = {"parameters": self.parameters, "bytes_before": self.bytes_before, "bytes_after": self.bytes_after}
        yield '{"name": '
        yield self.form
        yield f', {_json(before_group)[1:-1]}, "group": '
        yield "null" if self.group is None else self.group
        yield ', "parts": ['
        for number, part in enumerate(self.parts):
            yield f'{", " if number else ""}{{"name": '
            yield part.form
            yield f', "shape": {_json(part.shape)}}}'
        yield f"], {_json(sizes)[1:]}"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """The plan of one layer."""

    name: str
    """Its checkpoint name."""
    kind: Kind
    shape: tuple[int, ...] | None
    """Logical shape of its weight ([out, in]; [experts, out, in]); () if it has none, None if unknown."""
    dtype: str | None
    """Stored dtype, as safetensors spells it."""
    stored: str | None
    """How it is stored, if quantized."""
    scheme: Scheme
    decided_by: DecidedBy
    rule: RuleRef | None
    """The rule that decided, or (for "tie") that of the layer tied to; else None."""
    refined_by: tuple[RuleRef, ...]
    """Rules that set something of the scheme besides the one that decided, in order."""
    beaten: tuple[RuleRef, ...]
    """Rules that applied when their turn came and of which nothing is left."""
    group: str | None
    """Canonical name of the fused group it belongs to."""
    parts: tuple[tuple[str, tuple[int, ...] | None], ...]
    """Name and shape of each thing that it stores, if it stores several."""
    parameters: int | None
    """Logical parameters; 0 for a layer that shares another's storage. None here and below: unknown."""
    bytes_before: int | None
    """Stored bytes, scales included, as the model is."""
    bytes_after: int | None
    """The same under this plan."""

    @property
    def method(self) -> str:
        """Name of its method; `none` when nothing quantizes it."""
        return self.scheme.method

    @property
    def output(self) -> str | Quantization | None:
        """What it emits; None: the model's dtype."""
        return self.scheme.output

    @property
    def kv_cache(self) -> Quantization | None:
        """What its KV cache holds; None: the model's dtype."""
        return self.scheme.kv_cache
