"""Opening what the arguments name: models, policies, plans."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from policyquant.errors import PolicyQuantError

if TYPE_CHECKING:
    from policyquant.inventory.inventory import Inventory
    from policyquant.plan.plan import Plan
    from policyquant.policy.policy import Policy


def open_model(name: str) -> Inventory:
    """The layers of a model.

    Raises:
        SourceError: there is no such model, or it is damaged.
    """
    from policyquant.inventory.inventory import Inventory

    return Inventory.open(name)


def open_policy(name: str) -> Policy:
    """A policy, from a file or by the name of a preset.

    Raises:
        PolicyError: with every problem in it.
    """
    from policyquant.policy.load import load_policy

    return load_policy(name)


def resolve_model(model: str, policy: str) -> Plan:
    """A policy resolved on a model. The policy is read first: its faults are found at once, a model may take longer.

    Raises:
        PolicyQuantError: one of them cannot be read.
    """
    from policyquant.plan.resolve import resolve

    read = open_policy(policy)
    return resolve(read, open_model(model))


def plan_of(model: str, policy: str | None) -> Plan:
    """A policy resolved on a model; without a policy, the plan that a file holds.

    Raises:
        PolicyQuantError: one of them cannot be read, or a policy is missing.
    """
    if policy is not None:
        return resolve_model(model, policy)
    if not model.startswith("hf://") and not Path(model).is_file():
        # Says in its own words if there is nothing at all.
        open_model(model)
    elif not model.startswith("hf://") and _may_be_plan(model):
        from policyquant.plan.read import read_plan

        return read_plan(model)
    raise PolicyQuantError(f"{model}: a model needs --policy POLICY; only a plan's file (plan.json) goes without")


def _may_be_plan(path: str) -> bool:
    return path.endswith(".json") and not path.endswith(".index.json")
