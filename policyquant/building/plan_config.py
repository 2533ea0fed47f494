"""A plan as the quant config that layers ask at construction, as engines pass it down with a prefix."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from policyquant.building.origin import Origin
from policyquant.building.planned_only import check_methods_run
from policyquant.errors import BuildError
from policyquant.layers.base import WeightLayer
from policyquant.layers.built import Place, mark
from policyquant.methods.base import QuantMethod
from policyquant.methods.registry import method_for
from policyquant.plan.plan import Plan
from policyquant.policy.scheme import Scheme


class PlanConfig:
    """Gives each layer its scheme and method by its name, the `prefix` that it is constructed with.

    Layers then hold their tensors in the final form, uninitialised; `load_weights` fills them.

    >>> config = PlanConfig(plan)  # doctest: +SKIP
    >>> layer = Linear(4096, 4096, quant_config=config, prefix="model.layers.0.self_attn.o_proj")  # doctest: +SKIP

    Raises:
        BuildError: this is no plan, or it has findings at error level, or it gives a layer a method that nothing runs
            yet.
    """

    def __init__(self, plan: Plan, rename: Mapping[str, str] | None = None) -> None:
        """
        Args:
            plan: Of the checkpoint that the model is to be loaded from.
            rename: As for `load_weights`: regular expressions over names of tensors → replacements, for a model that
                calls its layers otherwise than the checkpoint.
        """
        if not isinstance(plan, Plan):
            raise BuildError(
                f"PlanConfig takes a Plan, found {type(plan).__name__}; resolve(policy, inventory) makes one of a"
                " policy and what the checkpoint holds"
            )
        errors = plan.errors()
        if errors:
            raise BuildError(
                f"{plan.policy.source} does not fit {plan.model.name}: {errors[0].code}: {errors[0].message}"
                + (f" (and {len(errors) - 1} more)" if len(errors) > 1 else "")
            )
        check_methods_run(plan)
        self.plan = plan
        self._origin = Origin(plan, rename=rename)

    def scheme_for(self, layer: nn.Module, name: str) -> Scheme:
        """The plan's scheme for a layer of this name; `none` for one that the plan does not have.

        The layer remembers which plan it asked.

        Raises:
            BuildError: the layer has no name, or holds several parts that the plan decides apart.
        """
        if not name:
            raise BuildError(
                f"{type(layer).__name__} was given a quant_config without a prefix; a plan knows layers by their names:"
                " pass the layer's full name as prefix"
            )
        scheme = self._origin.scheme_for(layer, name)
        mark(layer, Place(self._origin, name))
        return scheme

    def get_quant_method(self, layer: nn.Module, name: str) -> QuantMethod | None:
        """The method for a layer of this name; None for one that owns no weights.

        Raises:
            BuildError: as `scheme_for`.
        """
        scheme = self.scheme_for(layer, name)
        return method_for(scheme) if isinstance(layer, WeightLayer) else None
