"""Two plans, layer by layer: what one decides differently from the other. Both stay folded.

The layers are compared by their checkpoint names. What counts as different is what happens to a layer (its scheme) and
what it is (its kind, shape and stored form, when two models are compared), not which rule said so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from policyquant.findings import Finding
from policyquant.inventory.kinds import Kind
from policyquant.inventory.layers import Indices, own_name
from policyquant.inventory.spans import counted_spans
from policyquant.plan.decide import DecidedBy
from policyquant.plan.plan import ModelInfo, Plan, PolicyInfo
from policyquant.plan.rows import Row, RuleRef
from policyquant.plan.summary import Total
from policyquant.policy.scheme import Quantization, Scheme

FORMAT_VERSION: Final = 1

COMPARED: Final = ("kind", "shape", "dtype", "stored", "method", "weight", "input", "output", "kv_cache")
"""What is compared of a layer, in the order in which differences are listed."""


@dataclass(frozen=True, slots=True)
class LayerState:
    """What one plan says of a layer. Sizes are of one layer, under that plan."""

    kind: Kind
    shape: tuple[int, ...] | None
    dtype: str | None
    stored: str | None
    scheme: Scheme
    decided_by: DecidedBy
    rule: RuleRef | None
    refined_by: tuple[RuleRef, ...]
    bytes: int | None

    @staticmethod
    def of(row: Row) -> LayerState:
        """What a row says of each of its layers."""
        return LayerState(
            row.kind,
            row.shape,
            row.dtype,
            row.stored,
            row.scheme,
            row.decided_by,
            row.rule,
            row.refined_by,
            row.bytes_after,
        )

    def value(self, name: str) -> object:
        """One of `COMPARED`."""
        return getattr(self.scheme if name in _OF_SCHEME else self, name)

    def as_json(self) -> dict[str, object]:
        """For `PlanDiff.as_json`."""
        result: dict[str, object] = {name: _plain(self.value(name)) for name in COMPARED}
        result["decided_by"] = self.decided_by
        result["rule"] = None if self.rule is None else self.rule.as_json()
        result["refined_by"] = [rule.as_json() for rule in self.refined_by]
        result["bytes"] = self.bytes
        return result


_OF_SCHEME: Final = frozenset({"method", "weight", "input", "output", "kv_cache"})


def _plain(value: object) -> object:
    return value.as_json() if isinstance(value, Quantization) else value


@dataclass(frozen=True, slots=True)
class Difference:
    """Layers that differ in the same way, and from one another in nothing but their indices."""

    spans: tuple[tuple[str, int], ...]
    """Their checkpoint names, repeated ones as index ranges, and how many layers each stands for."""
    before: LayerState | None
    """What the first plan says; None: it has no such layers."""
    after: LayerState | None
    fields: tuple[str, ...]
    """Which of `COMPARED` differ; empty for layers of one plan only."""

    @property
    def count(self) -> int:
        """How many layers."""
        return sum(count for _, count in self.spans)

    @property
    def bytes_before(self) -> int | None:
        """Of all these layers; 0 where they do not exist."""
        return _times(self.before, self.count)

    @property
    def bytes_after(self) -> int | None:
        """Of all these layers; 0 where they do not exist."""
        return _times(self.after, self.count)

    def as_json(self) -> dict[str, object]:
        """For `PlanDiff.as_json`."""
        return {
            "layers": [name for name, _ in self.spans],
            "count": self.count,
            "fields": list(self.fields),
            "before": None if self.before is None else self.before.as_json(),
            "after": None if self.after is None else self.after.as_json(),
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
        }


def _times(state: LayerState | None, count: int) -> int | None:
    if state is None:
        return 0
    return None if state.bytes is None else state.bytes * count


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two plans."""

    model: ModelInfo
    policy: PolicyInfo
    total: Total
    errors: tuple[Finding, ...]
    """Its findings at error level: such a plan cannot be carried out."""

    def as_json(self) -> dict[str, object]:
        """For `PlanDiff.as_json`."""
        return {
            "model": {"name": self.model.name, "source": self.model.source},
            "policy": {"source": self.policy.source, "sha256": self.policy.sha256},
            "layers": self.total.layers,
            "parameters": self.total.parameters,
            "bytes": self.total.bytes_after,
            "bits_per_weight": self.total.bits_after,
            "errors": len(self.errors),
        }


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """What differs between two plans."""

    before: Side
    after: Side
    changed: tuple[Difference, ...]
    """Layers of both plans, in the order of the first."""
    removed: tuple[Difference, ...]
    """Layers of the first plan only."""
    added: tuple[Difference, ...]
    """Layers of the second plan only."""

    def __bool__(self) -> bool:
        """Whether anything differs."""
        return bool(self.changed or self.removed or self.added)

    def as_json(self) -> dict[str, Any]:
        """As documented in `docs/cli.md`; `layers` are patterns that reach exactly the layers meant."""
        return {
            "version": FORMAT_VERSION,
            "before": self.before.as_json(),
            "after": self.after.as_json(),
            "changed": [each.as_json() for each in self.changed],
            "removed": [each.as_json() for each in self.removed],
            "added": [each.as_json() for each in self.added],
        }


def diff_plans(before: Plan, after: Plan) -> PlanDiff:
    """What `after` decides differently from `before`, by the layers' checkpoint names."""
    ours, theirs = _by_template(before), _by_template(after)
    found: dict[tuple[str, LayerState | None, LayerState | None], list[Indices]] = {}
    for template in dict.fromkeys((*ours, *theirs)):
        for one, other, indices in _align(ours.get(template, []), theirs.get(template, [])):
            was = None if one is None else LayerState.of(one)
            will_be = None if other is None else LayerState.of(other)
            if was is None or will_be is None or _differing(was, will_be):
                found.setdefault((template, was, will_be), []).extend(indices)
    differences = [
        Difference(tuple(counted_spans(own_name(template), indices)), was, will_be, _differing(was, will_be))
        for (template, was, will_be), indices in found.items()
    ]
    return PlanDiff(
        _side(before),
        _side(after),
        tuple(each for each in differences if each.before is not None and each.after is not None),
        tuple(each for each in differences if each.after is None),
        tuple(each for each in differences if each.before is None),
    )


def _differing(before: LayerState | None, after: LayerState | None) -> tuple[str, ...]:
    """Which of `COMPARED` differ; none if there is nothing to compare."""
    if before is None or after is None:
        return ()
    return tuple(name for name in COMPARED if before.value(name) != after.value(name))


def _side(plan: Plan) -> Side:
    return Side(plan.model, plan.policy, plan.total, tuple(plan.errors()))


class _Named(NamedTuple):
    """A row by the indices that stand in its layers' names."""

    row: Row
    indices: Sequence[Indices]


def _by_template(plan: Plan) -> dict[str, list[_Named]]:
    result: dict[str, list[_Named]] = {}
    for row in plan.rows:
        form, indices = row.form, row.indices
        if form != own_name(form.template):
            pairs = tuple(zip(form.positions, form.offsets, strict=True))
            indices = tuple(tuple([each[p] - o for p, o in pairs]) for each in indices)
        result.setdefault(form.template, []).append(_Named(row, indices))
    return result


_Pair = tuple["Row | None", "Row | None", Sequence[Indices]]


def _align(ours: list[_Named], theirs: list[_Named]) -> Iterable[_Pair]:
    """The layers of one template, by what both plans say of them; a side is None where it has no such layers."""
    rest: list[_Named] = []
    for one in ours:
        # Rows of equal layers, which is what most are, need no look at each layer.
        same = next((i for i, other in enumerate(theirs[:_MOST_TRIED]) if other.indices == one.indices), None)
        if same is None:
            rest.append(one)
        else:
            yield one.row, theirs[same].row, one.indices
            theirs = theirs[:same] + theirs[same + 1 :]
    row_of = {indices: number for number, other in enumerate(theirs) for indices in other.indices}
    for one in rest:
        found: dict[int | None, list[Indices]] = {}
        for indices in one.indices:
            found.setdefault(row_of.pop(indices, None), []).append(indices)
        for number, shared in found.items():
            yield one.row, None if number is None else theirs[number].row, shared
    left: dict[int, list[Indices]] = {}
    for indices, number in row_of.items():
        left.setdefault(number, []).append(indices)
    for number, alone in left.items():
        yield None, theirs[number].row, alone


_MOST_TRIED: Final = 8
"""Rows looked at for one of equal layers: with more rows than that, going through the layers is cheaper."""
