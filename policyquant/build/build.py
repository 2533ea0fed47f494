"""`build`: a model in which every layer has its own method from the start.

construct     the factory runs; parameters are on the meta device, everything else is real    (construct)
resolve       the policy meets the source: a plan, and errors before any weight is read
bind          modules meet the source's tensors and the plan's schemes by name                 (binding)
load          one layer at a time, each turned into its final form                             (loading)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from policyquant.build.binding import ADOPTED, Binder
from policyquant.build.construct import construct
from policyquant.build.loading import Progress, load, prepare, retie, ties
from policyquant.build.stored_names import Renaming, StoredNames
from policyquant.build.targets import class_names, logical_state
from policyquant.checkpoint.reader import open_tensors
from policyquant.errors import BuildError
from policyquant.inventory.inventory import Inventory
from policyquant.layers.adopt import adopt
from policyquant.plan.plan import Plan
from policyquant.plan.resolve import resolve
from policyquant.policy.load import load_policy
from policyquant.policy.policy import Policy
from policyquant.policy.scheme import NONE

Source = str | os.PathLike[str] | Mapping[str, torch.Tensor]


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

    Args:
        factory: Makes the model. Its layers may be those of `policyquant.layers`, plain `nn.Linear` and `nn.Embedding`,
            and anything else that the policy leaves alone.
        policy: A path, a preset's name, a policy as data, a `Policy`, a `Plan` that was resolved before, or None for
            a model with nothing quantized.
        source: A directory or file of safetensors, or tensors by name. None: the values that the factory gives; it is
            then run as it is, in full precision.
        rename: Regular expressions over the source's tensor names → replacements, applied in order, for a model that
            calls its layers otherwise.
        device: Where the model is to be.
        dtype: Of all floating-point parameters that are not quantized; None: as the source stores each.
        progress: Called before each layer is loaded.

    Raises:
        BuildError: the policy does not fit the model, or the model does not fit the source; all reasons are in the
            message, and nothing was loaded.
        PolicyError: the policy is not valid.
        SourceError: the source cannot be read.
        PolicyQuantError: a weight that is to be quantized holds NaN or infinity.
    """
    if source is None:
        root = factory()
        if not isinstance(root, nn.Module):
            raise BuildError(f"the factory returned {type(root).__name__}, not an nn.Module")
        state = logical_state(root)
    else:
        root = construct(factory).root
        state = dict(source) if isinstance(source, Mapping) else {}
    if source is None or isinstance(source, Mapping):
        inventory = Inventory.from_tensors(
            ((name, tuple(tensor.shape), tensor.dtype) for name, tensor in state.items()),
            name=type(root).__name__,
            config=_config(root),
        )
        tensors = open_tensors(state)
    else:
        inventory = Inventory.open(source)
        tensors = open_tensors(source)
    inventory = inventory.with_classes(_classes(root, tensors, rename))
    plan = _plan(policy, inventory)
    names = StoredNames(inventory, rename)
    binder = Binder(names, plan, tensors)
    bindings = binder.bind(root)
    shared = ties(root)
    for binding in bindings:
        if binding.scheme != NONE and type(binding.module) in ADOPTED:
            adopt(binding.module).layer_name = binding.name  # type: ignore[call-overload]  # just these classes
    model_dtype = dtype or getattr(torch, inventory.model_dtype)
    problems = [*binder.problems, *prepare(bindings, dtype, model_dtype)]
    if problems:
        raise BuildError(_listed(f"{type(root).__name__} does not fit {inventory.name}", problems))
    load(bindings, torch.device(device), dtype, tensors.release, progress)
    retie(shared)
    return root.to(device)


def _plan(policy: Any, inventory: Inventory) -> Plan:
    if isinstance(policy, Plan):
        known = {name for layer in inventory.sets for name in map(layer.name, layer.indices)}
        lost = [layer.name for layer in policy if layer.name not in known]
        absent = known - {layer.name for layer in policy}
        if lost or absent:
            raise BuildError(
                f"the plan is for {policy.model.name} and does not fit {inventory.name}: {len(lost):,} of its layers"
                f" are not there, and it lacks {len(absent):,} that are, such as {(lost or sorted(absent))[0]!r}"
            )
        plan = policy
    else:
        plan = resolve(load_policy({"version": 1} if policy is None else policy), inventory)
    errors = plan.errors()
    if errors:
        texts = [f"{error.code}: {error.message}" for error in errors]
        raise BuildError(_listed(f"{plan.policy.source} does not fit {inventory.name}", texts))
    return plan


def _classes(root: nn.Module, stored: Iterable[str], rename: Mapping[str, str] | None) -> dict[str, str]:
    """Class names of the model's modules, by the names that the source has for them."""
    classes, renaming = class_names(root), Renaming(rename)
    found: dict[str, str] = {}
    for tensor in stored:
        name, _, suffix = tensor.rpartition(".")
        module = renaming.layer(name, suffix)
        if module in classes:
            found[name] = classes[module]
    return found


def _config(root: nn.Module) -> Mapping[str, object] | None:
    config = getattr(root, "config", None)
    return config if isinstance(config, Mapping) else None


def _listed(title: str, problems: Iterable[str], most: int = 50) -> str:
    lines = list(dict.fromkeys(problems))
    shown = [f"  {line}" for line in lines[:most]]
    if len(lines) > most:
        shown.append(f"  and {len(lines) - most:,} more")
    return "\n".join([f"{title}: {len(lines):,} problem{'' if len(lines) == 1 else 's'}", *shown])
