"""What a built model came from: its plan, and enough of its source to decide about a layer that is added later."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from torch import nn

from policyquant.building.listed import listed
from policyquant.building.shares import shares
from policyquant.building.stored_names import StoredNames
from policyquant.building.targets import Target, logical_tensors, part_names
from policyquant.errors import BuildError
from policyquant.inventory.inventory import Inventory
from policyquant.inventory.layers import LayerSet, NameForm, Namespace, Part
from policyquant.layers.built import Place, mark, watch_registrations
from policyquant.plan.plan import Plan
from policyquant.plan.resolve import resolve
from policyquant.plan.rows import LayerPlan, Row
from policyquant.policy.policy import Policy
from policyquant.policy.scheme import NONE, Scheme

_FIX: Final = "make the layer in `__init__`, so that it is planned with the others"


class Origin:
    """The plan of one model, by the names of its modules."""

    def __init__(
        self,
        plan: Plan,
        inventory: Inventory | None = None,
        rename: Mapping[str, str] | None = None,
    ) -> None:
        self.plan = plan
        self.inventory = inventory
        """What the plan was made for; None if only the plan is known."""
        self.rename = rename
        self._added: dict[str, str] = {}
        """Layers that were added to the model later: name in the tree → name in the plan."""
        self._names: StoredNames | None = None
        watch_registrations()

    def on_added(self, parent: nn.Module, name: str, child: nn.Module) -> None:
        """`child` is about to be registered as `name` in a module of the model; see `late_layers`.

        Raises:
            BuildError: it cannot take what the policy decides about it.
        """
        from policyquant.building.late_layers import settle

        settle(self, parent, name, child)

    @property
    def policy(self) -> Policy | None:
        """What the plan was resolved from; None for a plan that was read from a file."""
        return None if self.plan.context is None else self.plan.context.policy

    @property
    def names(self) -> StoredNames:
        """The names of the plan's layers."""
        if self._names is None:
            layers = _PlannedLayers(_layers(self.plan)) if self.inventory is None else self.inventory
            self._names = StoredNames(layers, self.rename)
        return self._names

    def plans(self, module: nn.Module, name: str) -> list[LayerPlan]:
        """What the plan says of a module and its parts; empty if it knows none of them."""
        parts = part_names(module, name)
        found = [share.stored.name for share in shares(self.names, Target(module, name, parts, {}))]
        found += [self._added[part.name] for part in parts if part.name in self._added]
        return [plan for each in dict.fromkeys(found) if (plan := self.plan.get(each)) is not None]

    def scheme_for(self, module: nn.Module, name: str) -> Scheme:
        """The scheme of a module; `none` for one that the plan does not have.

        Raises:
            BuildError: the module holds several parts, and the plan decides them apart.
        """
        plans = self.plans(module, name)
        if len({plan.scheme for plan in plans}) > 1:
            parts = ", ".join(f"{plan.name} ({plan.scheme})" for plan in plans)
            raise BuildError(f"{name!r} holds parts that the plan decides apart: {parts}")
        return plans[0].scheme if plans else NONE

    def extend(self, targets: Iterable[Target], classes: Mapping[str, str]) -> None:
        """Plan more layers: the policy is resolved anew over all that the model then has.

        Args:
            targets: The layers, with tensors that give shapes and dtypes.
            classes: Class names of their modules and parts, by name in the tree.

        Raises:
            BuildError: there is no policy to ask, it does not fit the larger model, or it would now decide otherwise
                about a layer that is built already. The plan is then what it was.
        """
        added = {
            part.name: (f"{self._stored_name(part.name)}.{key}", tuple(tensor.shape), tensor.dtype)
            for target in targets
            for part, key, tensor in logical_tensors(target)
            if key == "weight"
        }
        first = next(iter(added))
        if self.policy is None or self.inventory is None:
            raise BuildError(
                f"{first!r} is not in the plan, which was read from a file and has no policy to decide about it;"
                f" {_FIX}, or build the model with the policy"
            )
        stored = {name: tensor[0].rpartition(".")[0] for name, tensor in added.items()}
        inventory = self.inventory.with_tensors(added.values())
        inventory = inventory.with_classes({stored[name]: classes[name] for name in added if name in classes})
        plan = resolve(self.policy, inventory)
        problems = [f"{error.code}: {error.message}" for error in plan.errors()]
        problems += [
            f"{before.name!r} is built as {before.scheme}, and with {first!r} in the model the policy decides"
            f" {plan[before.name].scheme} ({_by(plan[before.name])})"
            for before in self.plan
            if before.name not in plan or plan[before.name].scheme != before.scheme
        ]
        if problems:
            raise BuildError(listed(f"{first!r} cannot be added to a model that is built; {_FIX}", problems))
        self.plan, self.inventory, self._names = plan, inventory, None
        self._added.update(stored)

    def _stored_name(self, name: str) -> str:
        """What the source would call a layer of this name, as it calls the layers beside it."""
        parent = name
        while parent:
            parent = parent.rpartition(".")[0]
            start = f"{parent}." if parent else ""
            for known in self.names.known():
                stored = self.names.find(known)
                rest = known.removeprefix(start)
                if stored is not None and known.startswith(start) and f".{stored.name}".endswith(f".{rest}"):
                    return stored.name.removesuffix(rest) + name.removeprefix(start)
        return name

    def __deepcopy__(self, memo: dict[int, Any]) -> Origin:
        copy = Origin(self.plan, self.inventory, self.rename)
        copy._added = dict(self._added)
        memo[id(self)] = copy
        return copy

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_names": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        watch_registrations()


def mark_all(root: nn.Module, origin: Origin) -> None:
    """Let every module of a model know what it came from."""
    for name, module in root.named_modules():
        mark(module, Place(origin, name))


class _PlannedLayers(NamedTuple):
    sets: list[LayerSet]


def _layers(plan: Plan) -> list[LayerSet]:
    """The layers of a plan with all their names; of one read from a file, those of the checkpoint."""
    if plan.context is not None:
        return list(dict.fromkeys(unit.layer for unit in plan.context.units))
    return [_layer(row) for row in plan.rows]


def _layer(row: Row) -> LayerSet:
    def names(form: NameForm) -> dict[Namespace, tuple[NameForm, ...]]:
        return {"checkpoint": (form,)}

    parts = tuple(Part("", names(part.form), part.shape) for part in row.parts)
    return LayerSet(row.kind, row.indices, names(row.form), parts or (Part("", names(row.form), row.shape),))


def _by(layer: LayerPlan) -> str:
    return "no rule" if layer.rule is None else f"{layer.rule.pattern!r}, {layer.rule.place}"
