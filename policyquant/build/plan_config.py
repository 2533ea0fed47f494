"""A plan as the quant config that layers ask at construction, as engines pass it down with a prefix."""

from __future__ import annotations

from torch import nn

from policyquant.build.targets import part_names
from policyquant.errors import BuildError
from policyquant.layers.base import WeightLayer
from policyquant.methods.base import QuantMethod
from policyquant.methods.registry import method_for
from policyquant.plan.plan import Plan
from policyquant.policy.scheme import NONE, Scheme


class PlanConfig:
    """Gives each layer its scheme and method by its name.

    >>> config = PlanConfig(plan)  # doctest: +SKIP
    >>> layer = Linear(4096, 4096, quant_config=config, prefix="model.layers.0.self_attn.o_proj")  # doctest: +SKIP
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def scheme_for(self, layer: nn.Module, name: str) -> Scheme:
        """The plan's scheme for a layer of this name; `none` for one that the plan does not have.

        Raises:
            BuildError: the layer holds several parts, and the plan decides them apart.
        """
        found = {part.name: self.plan[part.name] for part in part_names(layer, name) if part.name in self.plan}
        if not found and name in self.plan:
            return self.plan[name].scheme
        schemes = {plan.scheme for plan in found.values()}
        if len(schemes) > 1:
            parts = ", ".join(f"{part} ({plan.scheme})" for part, plan in found.items())
            raise BuildError(f"{name!r} holds parts that the plan decides apart: {parts}")
        return schemes.pop() if schemes else NONE

    def get_quant_method(self, layer: nn.Module, name: str) -> QuantMethod | None:
        """The method for a layer of this name; None for one that owns no weights."""
        return method_for(self.scheme_for(layer, name)) if isinstance(layer, WeightLayer) else None
