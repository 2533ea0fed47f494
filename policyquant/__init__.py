"""Declarative per-layer quantization policies for PyTorch models.

>>> from policyquant import Inventory, load_policy, resolve
>>> plan = resolve(load_policy("policy.yaml"), Inventory.open("path/to/model"))  # doctest: +SKIP
>>> plan["model.layers.0.mlp.down_proj"].method  # doctest: +SKIP
'fp8'
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from policyquant.building.build import build as build
    from policyquant.building.load_weights import load_weights as load_weights
    from policyquant.building.plan_config import PlanConfig as PlanConfig
    from policyquant.errors import BuildError as BuildError
    from policyquant.errors import PolicyError as PolicyError
    from policyquant.errors import PolicyQuantError as PolicyQuantError
    from policyquant.errors import SourceError as SourceError
    from policyquant.findings import Finding as Finding
    from policyquant.inventory.inventory import Inventory as Inventory
    from policyquant.plan.explain import Explanation as Explanation
    from policyquant.plan.plan import Plan as Plan
    from policyquant.plan.read import read_plan as read_plan
    from policyquant.plan.resolve import resolve as resolve
    from policyquant.plan.rows import LayerPlan as LayerPlan
    from policyquant.policy.load import load_policy as load_policy
    from policyquant.policy.policy import Policy as Policy
    from policyquant.policy.scheme import Quantization as Quantization
    from policyquant.policy.scheme import Scheme as Scheme

_PLACES = {
    "BuildError": "policyquant.errors",
    "Explanation": "policyquant.plan.explain",
    "Finding": "policyquant.findings",
    "Inventory": "policyquant.inventory.inventory",
    "LayerPlan": "policyquant.plan.rows",
    "Plan": "policyquant.plan.plan",
    "PlanConfig": "policyquant.building.plan_config",
    "Policy": "policyquant.policy.policy",
    "PolicyError": "policyquant.errors",
    "PolicyQuantError": "policyquant.errors",
    "Quantization": "policyquant.policy.scheme",
    "Scheme": "policyquant.policy.scheme",
    "SourceError": "policyquant.errors",
    "build": "policyquant.building.build",
    "load_weights": "policyquant.building.load_weights",
    "load_policy": "policyquant.policy.load",
    "read_plan": "policyquant.plan.read",
    "resolve": "policyquant.plan.resolve",
}
"""Public names load on first use, so that `import policyquant` costs next to nothing."""

_WITH_TORCH = ("PlanConfig", "build", "load_weights")
"""Those that load torch as well."""

__all__ = list(_PLACES)


def __getattr__(name: str) -> object:
    if name == "__version__":
        from policyquant.version import VERSION

        return VERSION
    if name in _PLACES:
        from importlib import import_module

        if name in _WITH_TORCH:
            from policyquant.extras import require

            require("torch", extra="torch", by=f"policyquant.{name}")
        value = getattr(import_module(_PLACES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*_PLACES, "__version__"])
