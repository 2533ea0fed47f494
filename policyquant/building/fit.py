"""A module tree, a source and a plan are fitted together; what does not fit is one error, before a byte is read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from policyquant.building.binding import ADOPTED, Binder, Binding
from policyquant.building.layer_names import layer_names
from policyquant.building.listed import listed
from policyquant.building.loading import not_to_share, prepare, ties
from policyquant.building.output_scales import OutputScales, lacks_scale, without_scale
from policyquant.building.planned_only import check_methods_run
from policyquant.building.stored_names import Renaming, StoredNames
from policyquant.building.targets import class_names
from policyquant.checkpoint.described import DescribedTensors, described
from policyquant.checkpoint.reader import Tensors, open_tensors
from policyquant.errors import BuildError, SourceError
from policyquant.inventory.inventory import Inventory
from policyquant.layers.adopt import adopt
from policyquant.plan.plan import Plan
from policyquant.plan.resolve import resolve
from policyquant.policy.load import load_policy
from policyquant.policy.scheme import NONE, Scheme

Source = str | os.PathLike[str] | Mapping[str, torch.Tensor] | Inventory


def open_source(
    source: Source, root: nn.Module, rename: Mapping[str, str] | None, device: torch.device | None
) -> tuple[Inventory, Tensors]:
    """The layers and the tensors of a source that a tree is to be loaded from. Only headers are read.

    Raises:
        SourceError: the source cannot be read, or has no values and `device` is not meta.
    """
    listed_alone = described(source)
    if listed_alone is not None:
        tensors: Tensors = DescribedTensors(listed_alone)
        if device is None or device.type != "meta":
            raise SourceError(
                f"{listed_alone.source or listed_alone.name}: lists tensors without their values, of which a model can"
                " be built on device='meta' alone; give the directory that has the weights"
            )
        return listed_alone.with_classes(_classes(root, tensors, rename)), tensors
    assert not isinstance(source, Inventory)
    tensors = open_tensors(source)
    if isinstance(source, Mapping):
        inventory = Inventory.from_tensors(
            ((name, tensor.shape, tensor.dtype) for name, tensor in tensors.items()),
            name=type(root).__name__,
            config=_config(root),
        )
    else:
        inventory = Inventory.open(source)
    known = inventory.with_classes(_classes(root, tensors, rename))
    return known.with_shared(_shared(root, tensors, rename)), tensors


def plan_for(policy: Any, inventory: Inventory, remark: str = "") -> Plan:
    """The plan of a source: a plan that was made before, or a policy resolved; `remark` is added to its findings.

    Raises:
        BuildError: the plan is for another model, has findings at error level, or gives a layer a method that nothing
            runs yet.
        PolicyError: the policy is not valid.
    """
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
        texts = [*([remark] if remark else []), *(f"{error.code}: {error.message}" for error in errors)]
        raise BuildError(listed(f"{plan.policy.source} does not fit {inventory.name}", texts))
    check_methods_run(plan)
    return plan


def fit(
    root: nn.Module,
    plan: Plan | None,
    inventory: Inventory,
    tensors: Tensors,
    rename: Mapping[str, str] | None,
    dtype: torch.dtype | None,
    problems: Iterable[str] = (),
    constructed: Mapping[nn.Module, Scheme] | None = None,
) -> list[Binding]:
    """What each module is loaded from, and its scheme; plain torch layers that get a method are ours from then on.

    Args:
        plan: None: each layer has the scheme that it was constructed with.
        problems: What was found wrong before.
        constructed: Schemes that layers were given at construction; where one quantizes, the plan's must be the same.

    Raises:
        BuildError: something does not fit; all of it is in the message.
    """
    model_type = inventory.config.get("model_type") or inventory.family
    names = StoredNames(inventory, rename)
    binder = Binder(names, plan, tensors, str(model_type or ""))
    bindings = binder.bind(root)
    output_scales = OutputScales(inventory, names, tensors)
    more: list[str] = []
    for binding in bindings:
        given = NONE if constructed is None else constructed.get(binding.module, NONE)
        if lacks_scale(binding.scheme):
            binding.output_scales = output_scales.find(binding, more)
            given = without_scale(given)
        if given not in (NONE, binding.scheme):
            more.append(
                f"{type(binding.module).__name__} {binding.name!r} was constructed as {given}, but the plan gives it"
                f" {binding.scheme}"
            )
        if binding.scheme != NONE and type(binding.module) in ADOPTED:
            adopt(binding.module).layer_name = binding.name  # type: ignore[call-overload]  # just these classes
    model_dtype = dtype or getattr(torch, inventory.model_dtype)
    found = [
        *problems,
        *binder.problems,
        *more,
        *not_to_share(ties(root), bindings),
        *prepare(bindings, dtype, model_dtype),
    ]
    if found:
        raise BuildError(listed(f"{type(root).__name__} does not fit {inventory.name}", found))
    return bindings


def names_apart(root: nn.Module, stored: Iterable[str], rename: Mapping[str, str] | None) -> str:
    """A sentence if the source has no name of a module of the model: a policy then reaches little, or nothing."""
    own = next(iter(root.state_dict()), None)
    first = next(iter(stored), None)
    if own is None or first is None or _classes(root, stored, rename):
        return ""
    return (
        f"no name in the source is one in the model, which may be why: the source has {first!r}, the model {own!r};"
        " rename={regex: replacement} brings them together"
    )


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


def _shared(root: nn.Module, stored: Iterable[str], rename: Mapping[str, str] | None) -> dict[str, str]:
    """Tensors of the source that are one parameter of two layers in the model: name → the first's."""
    found = ties(root)
    if not found:
        return {}
    names, renaming = layer_names(root), Renaming(rename)
    of_source = {}
    for tensor in stored:
        name, _, suffix = tensor.rpartition(".")
        of_source[f"{renaming.layer(name, suffix)}.{suffix}"] = tensor
    pairs = ((f"{names[module]}.{key}", f"{names[owner]}.{first}") for module, key, owner, first in found)
    return {of_source[one]: of_source[two] for one, two in pairs if one in of_source and two in of_source}


def _config(root: nn.Module) -> Mapping[str, object] | None:
    config = getattr(root, "config", None)
    return config if isinstance(config, Mapping) else None
