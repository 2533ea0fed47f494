"""Opening what the arguments name: models, policies, plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from policyquant.cli.given import policy_in, what_is
from policyquant.errors import PolicyError, PolicyQuantError, SourceError

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

    try:
        return Inventory.open(name)
    except SourceError:
        given = what_is(name)
        if given in ("plan", "policy"):
            raise PolicyQuantError(f"{name}: a {given}, where a model is expected") from None
        raise


def open_policy(name: str) -> Policy:
    """A policy, from a file or by the name of a preset.

    Raises:
        PolicyError: with every problem in it.
    """
    from policyquant.policy.load import load_policy

    try:
        return load_policy(name)
    except PolicyError:
        given = what_is(name)
        if given == "plan":
            message = f"{name}: a plan, where a policy is expected; policyquant inspect {name} shows it"
            raise PolicyQuantError(message) from None
        if given == "model":
            own = policy_in(name)
            advice = f"; the policy in it is {own}" if own else ""
            raise PolicyQuantError(f"{name}: a model, where a policy is expected{advice}") from None
        raise


def resolve_model(model: str, policy: str | None, needs: str = "a model") -> Plan:
    """A policy resolved on a model. The policy is read first: its faults are found at once, a model may take longer.

    Args:
        model: the model.
        policy: the policy; None: the one in the model's own `config.json`.
        needs: who is told that a policy is missing: "explain", "plan".

    Raises:
        PolicyQuantError: one of them cannot be read, or a policy is missing.
    """
    from policyquant.plan.resolve import resolve

    if policy is None:
        policy = policy_in(model)
    if policy is None:
        if what_is(model) == "plan":
            advice = f"{needs} needs the model, and --policy POLICY"
            raise PolicyQuantError(f"{model}: a plan, which holds no rules; {advice}")
        raise _no_policy(model, f"{needs} needs --policy POLICY")
    read = open_policy(policy)
    return resolve(read, open_model(model))


def plan_of(model: str, policy: str | None) -> Plan:
    """A policy resolved on a model; without a policy, the plan that a file holds.

    Raises:
        PolicyQuantError: one of them cannot be read, or a policy is missing.
    """
    if policy is not None or policy_in(model) is not None:
        return resolve_model(model, policy)
    from policyquant.plan.read import is_plan, read_plan

    if is_plan(model):
        return read_plan(model)
    raise _no_policy(model, "a model needs --policy POLICY; only a plan's file (plan.json) goes without")


def _no_policy(model: str, message: str) -> PolicyQuantError:
    if not model.startswith("hf://"):
        open_model(model)  # Says in its own words what is wrong with the file, if anything is.
    return PolicyQuantError(f"{model}: {message}")
