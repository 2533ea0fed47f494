"""Layers that join a built model after `build`: registered by hand, or in a first forward.

When a module is registered in a built model, by whatever torch has for it (`model.name = layer`, `add_module`,
`ModuleList.append`), each layer in it takes what the policy decides for its name there, before the registration is
done:

- A name that the plan has (a head that is replaced) keeps its scheme.
- For a new name the policy is resolved anew over the whole model with the new layers in it. If that would change a
  decision about a layer that is built already, or there is only a plan from a file to ask, it is an error.
- A layer that gets a method is quantized at once from the values that it holds.
- What is part of a built model already and only moves takes nothing new.
- What is put into a built layer, or around one under its name (an adapter such as LoRA's), is left as it is made.

Anything that cannot be is a `BuildError`, and nothing is registered or changed. torch tells nobody about
`ModuleList.insert`, `Sequential.insert` and writing into `_modules`; such layers stay as they are made.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn

from policyquant.building.all_or_nothing import all_or_nothing
from policyquant.building.binding import ADOPTED, Binding
from policyquant.building.leftovers import lazy_parameters
from policyquant.building.listed import listed
from policyquant.building.loading import load, prepare
from policyquant.building.meta_parameters import is_recording
from policyquant.building.origin import Origin
from policyquant.building.output_scales import lacks_scale
from policyquant.building.targets import Target, class_names, logical_tensors, own_tensors, part_names
from policyquant.checkpoint.tensors import MemoryTensor, Slot
from policyquant.errors import BuildError, PolicyQuantError
from policyquant.layers.adopt import adopt
from policyquant.layers.base import PolicyLayer, WeightLayer
from policyquant.layers.built import Place, Refusing, mark, place_of
from policyquant.methods.registry import method_for
from policyquant.policy.scheme import NONE


class _Found(NamedTuple):
    """What is in a subtree that is to be registered, with names."""

    new: list[tuple[str, nn.Module]]
    built: list[nn.Module]
    """Modules of a built model; what they hold is not looked into."""


def settle(origin: Origin, parent: nn.Module, key: str, child: nn.Module) -> None:
    """Give the layers in `child`, which is about to be registered in `parent`, what the policy decides about them.

    Raises:
        BuildError: one of them cannot take it; all reasons are in the message, and nothing was changed.
    """
    place = place_of(parent)
    assert place is not None
    if is_recording():
        return  # A factory extends a model that was built before; `build` decides about all of it.
    name = f"{place.name}.{key}" if place.name else key
    found = _search(child, name)
    within = isinstance(parent, PolicyLayer) or type(parent) in ADOPTED
    around = any(built.name == name for built in map(place_of, found.built) if built is not None)
    added = place.added or within or around
    if not added:
        with all_or_nothing(module for _, module in found.new):
            _decide(origin, found.new)
    for module_name, module in found.new:
        if isinstance(module, WeightLayer) and isinstance(module.quant_method, Refusing):
            module.note_method(method_for(module.scheme))
        mark(module, Place(origin, module_name, added))


def _search(root: nn.Module, name: str) -> _Found:
    found, seen = _Found([], []), set[int]()

    def visit(module: nn.Module, name: str) -> None:
        if id(module) in seen:
            return
        seen.add(id(module))
        if place_of(module) is not None:
            found.built.append(module)
            return
        found.new.append((name, module))
        for child_name, child in module._modules.items():
            if child is not None:
                visit(child, f"{name}.{child_name}")

    visit(root, name)
    return found


def _decide(origin: Origin, new: list[tuple[str, nn.Module]]) -> None:
    lazy = lazy_parameters({module: (name,) for name, module in new})
    if lazy:
        raise BuildError(listed(f"{new[0][0]!r} cannot join the model", lazy))
    targets = list(_targets(new))
    unknown = [each for each in targets if _is_matrix(each) and not origin.plans(each.module, each.name)]
    if origin.policy is None:
        # Whoever has only a plan to ask can still say that what takes no method has none.
        unknown = [each for each in unknown if isinstance(each.module, (WeightLayer, *ADOPTED))]
    if unknown:
        classes = {
            name if not inner else f"{name}.{inner}": kind
            for name, module in new
            for inner, kind in class_names(module).items()
        }
        classes |= {part.name: "Linear" for each in unknown for part in each.parts if len(each.parts) > 1}
        origin.extend(unknown, classes)
    problems: list[str] = []
    bindings = [binding for each in targets if (binding := _bind(origin, each, problems)) is not None]
    problems += prepare(bindings, None, torch.get_default_dtype()) if not problems else ()
    if problems:
        raise BuildError(listed(f"{new[0][0]!r} cannot join the model", problems))
    try:
        load(bindings, None, None, lambda: None)
    except PolicyQuantError as error:
        raise BuildError(f"{new[0][0]!r} cannot join the model: {error}") from error
    for each in targets:
        if isinstance(each.module, PolicyLayer):
            each.module.layer_name = each.name


def _targets(new: list[tuple[str, nn.Module]]) -> Iterator[Target]:
    for name, module in new:
        tensors = own_tensors(module)
        if tensors or isinstance(module, PolicyLayer):
            yield Target(module, name, part_names(module, name), tensors)


def _is_matrix(target: Target) -> bool:
    weight = target.tensors.get("weight")
    return weight is not None and weight.dim() > 1


def _bind(origin: Origin, target: Target, problems: list[str]) -> Binding | None:
    """How a new layer gets its method from the values that it holds; None for one that stays as it is."""
    module, name = target.module, target.name
    kind = f"{type(module).__name__} {name!r}"
    if isinstance(module, PolicyLayer) and module.layer_name not in ("", name):
        problems.append(f"{kind} was given prefix={module.layer_name!r}; correct it, or leave it out")
    try:
        scheme = origin.scheme_for(module, name)
    except BuildError as error:
        problems.append(str(error))
        return None
    if lacks_scale(scheme):
        problems.append(
            f"{kind} gets {scheme}, whose scale a checkpoint tells; write one into the policy, or scheme: dynamic"
        )
    held = module.scheme if isinstance(module, PolicyLayer) else NONE
    if held != NONE:
        if scheme != held:
            problems.append(f"{kind} is {held} already, and the policy gives it {scheme}")
        return None
    if scheme == NONE:
        return None
    binding = Binding(module, name, scheme, tensors=target.tensors)
    if not isinstance(module, WeightLayer) and type(module) not in ADOPTED:
        if isinstance(module, PolicyLayer):
            module.take_scheme(scheme)
        else:
            problems.append(
                f"{kind} gets {scheme}, but its class takes no method; use a layer of policyquant.layers, nn.Linear or"
                " nn.Embedding, or give it the method 'none'"
            )
        return None
    if any(tensor.is_meta for tensor in target.tensors.values()):
        problems.append(f"{kind} gets {scheme}, but holds no values to quantize: give it some before it is registered")
        return None
    beside = binding.beside  # These stay what they are.
    binding.tensors = {key: tensor for key, tensor in target.tensors.items() if key not in beside}
    for part, suffix, tensor in logical_tensors(target._replace(tensors=binding.tensors)):
        binding.slots[Slot(suffix, part.part, part.expert)] = MemoryTensor(f"{part.name}.{suffix}", tensor)
    if not isinstance(module, WeightLayer):
        adopt(module)  # type: ignore[call-overload]  # just these classes
    return binding
