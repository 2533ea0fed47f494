"""What a module tree asks for: each module that holds tensors or that a plan may decide about, and its parts' names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn

from policyquant.layers.base import PolicyLayer, WeightLayer


class PartName(NamedTuple):
    """One part of a module under the name that a checkpoint gives it."""

    name: str
    part: str = ""
    expert: int | None = None


def part_names(module: nn.Module, name: str) -> list[PartName]:
    """The names of what a module holds. Parts of a merged layer stand beside it, as if they were layers of their own:
    `self_attn.qkv_proj` holds `self_attn.q_proj`; `experts.gate_up_proj` holds `experts.0.gate_proj`."""
    if not isinstance(module, WeightLayer):
        return [PartName(name)]
    parent = name.rpartition(".")[0]
    prefix = f"{parent}." if parent else ""
    if module.num_experts is None:
        return [PartName(prefix + part if part else name, part) for part in module.parts]
    return [
        PartName(f"{prefix}{expert}.{part}", part, expert)
        for expert in range(module.num_experts)
        for part in module.parts
    ]


class Target(NamedTuple):
    """One module of the tree that is to be bound."""

    module: nn.Module
    name: str
    parts: list[PartName]
    tensors: dict[str, torch.Tensor]
    """Its own parameters and persistent buffers, those that another module has under an earlier name left out."""

    def under(self, name: str) -> Target:
        """The same module under another of its names."""
        return self if name == self.name else self._replace(name=name, parts=part_names(self.module, name))


def own_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers of a module, without those of the modules inside it."""
    transient = module._non_persistent_buffers_set
    own = [*module._parameters.items(), *(each for each in module._buffers.items() if each[0] not in transient)]
    return {key: tensor for key, tensor in own if tensor is not None}


def targets(root: nn.Module) -> Iterator[Target]:
    """Every module that holds tensors of its own, and every layer of ours, in the order of the tree."""
    seen: dict[int, str] = {}
    for name, module in root.named_modules():
        tensors = {key: each for key, each in own_tensors(module).items() if seen.setdefault(id(each), name) == name}
        tied = type(module) in (nn.Linear, nn.Embedding)  # all that it has, another has under an earlier name
        if tensors or tied or isinstance(module, PolicyLayer):
            yield Target(module, name, part_names(module, name), tensors)


def logical_state(root: nn.Module) -> dict[str, torch.Tensor]:
    """The tensors of a tree under the names of its parts, as a checkpoint that stores them one by one would have them.

    Merged weights are given as views of their rows.
    """
    return {
        f"{part.name}.{key}" if part.name else key: tensor
        for target in targets(root)
        for part, key, tensor in logical_tensors(target)
    }


def logical_tensors(target: Target) -> Iterator[tuple[PartName, str, torch.Tensor]]:
    """The tensors of one module by part and suffix; those of a merged layer are views of their rows."""
    module = target.module
    for key, tensor in target.tensors.items():
        if not isinstance(module, WeightLayer) or key not in ("weight", "bias"):
            yield PartName(target.name), key, tensor.detach()
            continue
        start: dict[int | None, int] = {}
        for each in target.parts:
            rows = tensor.detach() if each.expert is None else tensor.detach()[each.expert]
            begin = start.get(each.expert, 0)
            start[each.expert] = begin + module.parts[each.part]
            yield each, key, rows[begin : start[each.expert]]


def class_names(root: nn.Module) -> dict[str, str]:
    """Class name of each module by its name; a part of a merged layer is what it would be alone."""
    classes: dict[str, str] = {}
    for name, module in root.named_modules(remove_duplicate=False):
        if isinstance(module, WeightLayer) and not isinstance(module, nn.Embedding):
            kind = "Linear" if module.num_experts is None else "Experts"
            classes.update((part.name, kind) for part in part_names(module, name))
        else:
            classes[name] = type(module).__name__
    return classes
