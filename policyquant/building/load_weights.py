"""`load_weights`: a checkpoint into a model whose layers took their methods when they were constructed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress

import torch
from torch import nn

from policyquant.building.all_or_nothing import all_or_nothing
from policyquant.building.arguments import check_dtype, check_model, check_rename, checked_device
from policyquant.building.fit import Source, fit, open_source
from policyquant.building.layer_names import all_names, name_layers
from policyquant.building.leftovers import valueless_tensors
from policyquant.building.loading import Progress, Ties, load, retie, ties
from policyquant.building.origin import Origin, mark_all
from policyquant.building.surroundings import plain_surroundings
from policyquant.errors import BuildError, PolicyQuantError
from policyquant.inventory.inventory import Inventory
from policyquant.layers.base import PolicyLayer, WeightLayer
from policyquant.layers.built import place_of, refuse
from policyquant.layers.embedding import ParallelLMHead, VocabParallelEmbedding
from policyquant.plan.plan import Plan
from policyquant.policy.scheme import Scheme


def load_weights(
    model: nn.Module,
    source: Source,
    rename: Mapping[str, str] | None = None,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    progress: Progress | None = None,
) -> None:
    """Load a model whose layers were constructed with `quant_config=PlanConfig(plan)` and their names as `prefix`.

    Each layer is handed all its tensors at once and stores them in the form that the plan decides; the result is the
    state dict that `build` gives. Layers that were given no `quant_config`, plain `nn.Linear` and `nn.Embedding` too,
    take what the plan has for their names. With a quant config of one's own there is no plan to compare with, and each
    layer keeps the scheme that it was given. Afterwards the model is as one from `build`; loading it again is allowed.

    Args:
        model: Its layers may be on the meta device; buffers and tensor attributes must have values.
        source: A directory or file of safetensors, or tensors by name.
        rename: Regular expressions over the source's tensor names → replacements, applied in order, for a model that
            calls its layers otherwise.
        device: Where parameters are to be; None: where each layer's are, and of those on meta, the CPU.
        dtype: Of all floating-point parameters that are not quantized; None: as the source stores each.
        progress: Called before each layer is loaded.

    Raises:
        BuildError: model, plan and source do not fit each other; all reasons are in the message, and the model is as
            it was.
        SourceError: the source cannot be read; the model is as it was.
        PolicyQuantError: a weight that is to be quantized holds NaN or infinity. The model is then not half loaded but
            unusable: its layers of ours raise a `BuildError` that says so wherever they are used, until `load_weights`
            succeeds; all other modules hold what they held before.
    """
    check_model(model)
    check_rename(rename)
    check_dtype(dtype)
    with plain_surroundings():
        _load_weights(model, source, rename, None if device is None else checked_device(device), dtype, progress)


def _load_weights(
    model: nn.Module,
    source: Source,
    rename: Mapping[str, str] | None,
    device: torch.device | None,
    dtype: torch.dtype | None,
    progress: Progress | None,
) -> None:
    plan = _plan_of(model)
    inventory, tensors = open_source(source, model, rename, device)
    names = all_names(model)
    shared = ties(model)
    heads = [(e, e.tied_to) for e in model.modules() if isinstance(e, ParallelLMHead) and e.tied_to is not None]
    with all_or_nothing(list(model.modules())):
        problems = [*valueless_tensors(names), *name_layers(names), *_unplanned(plan, inventory)]
        constructed: dict[nn.Module, Scheme] = {
            each: each.scheme for each in model.modules() if isinstance(each, PolicyLayer)
        }
        bindings = fit(model, plan, inventory, tensors, rename, dtype, problems, constructed)
    weights = {each for each in model.modules() if isinstance(each, WeightLayer)}
    try:
        with all_or_nothing(binding.module for binding in bindings if binding.module not in weights):
            load(bindings, device, dtype, tensors.release, progress)
            _tie(shared, heads)
    except BaseException as error:
        with suppress(PolicyQuantError):
            _tie(shared, heads)
        reason = f"loading this model failed, and it holds no usable weights; load it again ({error})"
        for layer in weights:
            refuse(layer, reason)
        raise
    if plan is not None:
        mark_all(model, Origin(plan, inventory, rename))


def _tie(shared: Ties, heads: list[tuple[ParallelLMHead, VocabParallelEmbedding]]) -> None:
    """What shared a tensor before shares one again."""
    retie(shared)
    for head, embedding in heads:
        head.tie_to(embedding)


def _unplanned(plan: Plan | None, inventory: Inventory) -> Iterator[str]:
    names = (name for layer in inventory.sets if layer.tensors for name in map(layer.name, layer.indices))
    lost = [] if plan is None else [name for name in names if name not in plan]
    if plan is not None and lost:
        others = f"and {len(lost) - 1:,} others are" if len(lost) > 1 else "is"
        yield f"{lost[0]!r} {others} in the source, but not in the plan, which is for {plan.model.name}"


def _plan_of(model: nn.Module) -> Plan | None:
    """The plan that the model's layers were constructed by; None if they asked none.

    Raises:
        BuildError: they asked several.
    """
    plans: dict[int, tuple[Plan, str]] = {}
    for name, module in model.named_modules():
        place = place_of(module)
        if place is not None and isinstance(place.origin, Origin):
            plans.setdefault(id(place.origin.plan), (place.origin.plan, name))
    if len(plans) > 1:
        (_, first), (_, second), *_ = plans.values()
        raise BuildError(f"{first!r} and {second!r} were constructed by two plans; give all layers one PlanConfig")
    return next((plan for plan, _ in plans.values()), None)
