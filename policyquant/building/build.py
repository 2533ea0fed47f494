"""`build`: a model in which every layer has its own method from the start.

construct     the factory runs; parameters are on the meta device, everything else is real    (construct)
resolve       the policy meets the source: a plan, and errors before any weight is read       (fit)
bind          modules meet the source's tensors and the plan's schemes by name                (fit, binding)
load          one layer at a time, each turned into its final form                            (loading)
mark          each module knows what it came from, for layers that are added later            (origin, late_layers)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from policyquant.building.all_or_nothing import all_or_nothing
from policyquant.building.arguments import check_dtype, check_factory, check_rename, checked_device
from policyquant.building.construct import construct, make
from policyquant.building.fit import Source, fit, names_apart, open_source, plan_for
from policyquant.building.loading import Progress, load, retie, ties
from policyquant.building.origin import Origin, mark_all
from policyquant.building.surroundings import plain_surroundings
from policyquant.building.targets import logical_state
from policyquant.plan.plan import Plan
from policyquant.policy.policy import Policy


def build(
    factory: Callable[[], nn.Module],
    *,
    policy: str | os.PathLike[str] | Mapping[str, Any] | Policy | Plan | None,
    source: Source | None = None,
    rename: Mapping[str, str] | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype | None = None,
    progress: Progress | None = None,
) -> nn.Module:
    """Construct a model, and load every layer in the form that the policy decides.

    A layer that is registered in the model later takes the method that the policy gives to its name then; see
    `policyquant.building.late_layers`.

    Args:
        factory: Makes the model. Its layers may be those of `policyquant.layers`, plain `nn.Linear` and `nn.Embedding`,
            and anything else that the policy leaves alone.
        policy: A path, a preset's name, a policy as data, a `Policy`, a `Plan` that was resolved before, or None for
            a model with nothing quantized.
        source: A directory or file of safetensors, or tensors by name; on device "meta" also an `Inventory` or the
            file of one, which list tensors without values. None: the values that the factory gives; it is then run as
            it is, in full precision.
        rename: Regular expressions over the source's tensor names → replacements, applied in order, for a model that
            calls its layers otherwise.
        device: Where the model is to be. On "meta" no weight is read: the model has its layers, methods, shapes and
            dtypes, as for asking what it will take.
        dtype: Of all floating-point parameters that are not quantized; None: as the source stores each.
        progress: Called before each layer is loaded.

    Raises:
        BuildError: the policy does not fit the model, or the model does not fit the source; all reasons are in the
            message, and nothing was loaded. Or an argument makes no sense, as a device that is not there.
        PolicyError: the policy is not valid.
        SourceError: the source cannot be read.
        PolicyQuantError: a weight that is to be quantized holds NaN or infinity.
    """
    check_factory(factory)
    check_rename(rename)
    check_dtype(dtype)
    with plain_surroundings():
        return _build(factory, policy, source, rename, checked_device(device), dtype, progress)


def _build(
    factory: Callable[[], nn.Module],
    policy: Any,
    source: Source | None,
    rename: Mapping[str, str] | None,
    device: torch.device,
    dtype: torch.dtype | None,
    progress: Progress | None,
) -> nn.Module:
    if source is None:
        root = make(factory)
        source = logical_state(root)
    else:
        root = construct(factory)
    with all_or_nothing(root.modules()):  # They may be the caller's own, made before.
        inventory, tensors = open_source(source, root, rename, device)
        plan = plan_for(policy, inventory, names_apart(root, tensors, rename))
        shared = ties(root)
        bindings = fit(root, plan, inventory, tensors, rename, dtype)
        load(bindings, device, dtype, tensors.release, progress)
        retie(shared)
    if policy is not None:
        mark_all(root, Origin(plan, inventory, rename))
    return root.to(device)
