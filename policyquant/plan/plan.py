"""The plan: a scheme for every layer of one model, and where each comes from. Immutable."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from policyquant.errors import PolicyQuantError, did_you_mean
from policyquant.findings import Finding
from policyquant.inventory.collapse import template_of
from policyquant.inventory.layers import Indices
from policyquant.plan.rows import LayerPlan, Row
from policyquant.plan.summary import Total, summary_json, total
from policyquant.version import VERSION

if TYPE_CHECKING:
    from policyquant.plan.context import Context
    from policyquant.plan.explain import Explainer, Explanation

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a plan says of the model it is for."""

    name: str
    architecture: str | None
    source: str
    layers: int
    parameters: int | None
    bytes: int | None


@dataclass(frozen=True, slots=True)
class PolicyInfo:
    """Which policy a plan was resolved from."""

    source: str
    sha256: str


@dataclass(frozen=True, eq=False)
class Plan:
    """The resolved plan of one model.

    `plan["model.layers.0.mlp.down_proj"]` is one layer's plan (any of its names will do), `plan.layers()` goes through
    all of them, `plan.rows` has them folded.
    """

    model: ModelInfo
    policy: PolicyInfo
    rows: tuple[Row, ...] = field(repr=False)
    findings: tuple[Finding, ...] = field(repr=False)
    _explainer: Explainer | None = field(default=None, repr=False)
    _lookup: dict[str, list[Row]] = field(default_factory=dict, repr=False)

    def layers(self) -> Iterator[LayerPlan]:
        """Every layer, in the order of the inventory."""
        return (row.at(indices) for row in self.rows for indices in row.indices)

    def __iter__(self) -> Iterator[LayerPlan]:
        return self.layers()

    def __len__(self) -> int:
        return sum(row.count for row in self.rows)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._find(name) is not None

    def get(self, name: str) -> LayerPlan | None:
        """The plan of one layer, as `plan[name]`; None if no layer has this name."""
        found = self._find(name)
        return None if found is None else found[0].at(found[1])

    def __getitem__(self, name: str) -> LayerPlan:
        """The plan of one layer, by its checkpoint name or (in a plan just resolved) any other name of it.

        Raises:
            KeyError: no layer has this name.
        """
        found = self.get(name)
        if found is None:
            inside = sum(layer.startswith(f"{name}.") for row in self.rows for layer in row.names())
            if inside:
                raise KeyError(f"{name!r} is no layer but a module with {inside:,} layers inside")
            raise KeyError(f"no layer is named {name!r}{did_you_mean(name, self._near(name))}")
        return found

    def _find(self, name: str) -> tuple[Row, Indices] | None:
        try:
            template, indices = template_of(name)
        except PolicyQuantError:
            return None
        if not self._lookup:
            for row in self.rows:
                self._lookup.setdefault(row.form.template, []).append(row)
        for row in self._lookup.get(template, ()):
            if indices in row.members:
                return row, indices
        if self._explainer is not None:
            own = self._explainer.checkpoint_name(name)
            if own is not None and own != name:
                return self._find(own)
        return None

    def _near(self, name: str) -> list[str]:
        """One real name a row, with the asked-for indices where the row has them."""
        try:
            _, indices = template_of(name)
        except PolicyQuantError:  # No model has such a name, so none is near it.
            return []
        return [row.form.fill(indices if indices in row.members else row.indices[0]) for row in self.rows]

    def explain(self, name: str) -> Explanation:
        """Every rule in order, which reached this layer, which won and why.

        Raises:
            KeyError: no layer has this name.
            PolicyQuantError: this plan was read from a file, which holds the outcome but not all that led to it.
        """
        if self._explainer is None:
            raise PolicyQuantError(
                "a plan read from a file tells the rule that decided each layer, but not every rule that was tried;"
                " explain the model with the policy instead"
            )
        return self._explainer.explain(self[name])

    @property
    def context(self) -> Context | None:
        """The resolution that it came from, for what asks more of it than its outcome; None if read from a file."""
        return None if self._explainer is None else self._explainer.context

    @property
    def total(self) -> Total:
        """Layers, parameters and bytes of everything."""
        return total(self.rows)

    def errors(self, *, strict: bool = False) -> list[Finding]:
        """The findings that stop work: errors, and with `strict` warnings too."""
        levels = ("error", "warning") if strict else ("error",)
        return [finding for finding in self.findings if finding.level in levels]

    def to_json(self) -> str:
        """The plan as text, by `schemas/plan.schema.json`."""
        return "".join(self.json_chunks())

    def json_chunks(self, rows: Sequence[Row] | None = None) -> Iterator[str]:
        """The same text in pieces; `rows` limits it to some layers (the summary is then theirs)."""
        rows = self.rows if rows is None else rows
        head: dict[str, Any] = {
            "version": FORMAT_VERSION,
            "generator": f"policyquant {VERSION}",
            "model": {
                "name": self.model.name,
                "architecture": self.model.architecture,
                "source": self.model.source,
                "layers": self.model.layers,
                "parameters": self.model.parameters,
                "bytes": self.model.bytes,
            },
            "policy": {"source": self.policy.source, "sha256": self.policy.sha256},
        }
        yield json.dumps(head, ensure_ascii=False, indent=1)[:-2] + ',\n "layers": ['
        separator = "\n  "
        for row in rows:
            text = ",\n  ".join(row.as_json_lines())
            yield separator + text
            separator = ",\n  "
        tail = {
            "findings": [finding._asdict() for finding in self.findings],
            "summary": summary_json(rows, self.findings),
        }
        yield "\n ],\n" + json.dumps(tail, ensure_ascii=False, indent=1)[2:] + "\n"
