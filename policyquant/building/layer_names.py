"""What the tree calls each module, and which names layers carry that were given by hand."""

from __future__ import annotations

from torch import nn

from policyquant.layers.base import PolicyLayer


def layer_names(root: nn.Module) -> dict[nn.Module, str]:
    """The name of every module in the tree ("" is the root); the first one for a module under several names."""
    return {module: name for name, module in root.named_modules()}


def all_names(root: nn.Module) -> dict[nn.Module, tuple[str, ...]]:
    """Every name of every module in the tree, in the order of the tree; a module inside itself is not followed."""
    found: dict[nn.Module, list[str]] = {}

    def visit(module: nn.Module, name: str, above: tuple[nn.Module, ...]) -> None:
        found.setdefault(module, []).append(name)
        for child_name, child in module._modules.items():
            if child is not None and child is not module and all(child is not one for one in above):
                visit(child, f"{name}.{child_name}" if name else child_name, (*above, module))

    visit(root, "", ())
    return {module: tuple(names) for module, names in found.items()}


def name_layers(names: dict[nn.Module, tuple[str, ...]]) -> list[str]:
    """Give every `PolicyLayer` its first name in the tree; one problem for each that was given the name of another."""
    problems = []
    for module, (first, *others) in names.items():
        if isinstance(module, PolicyLayer):
            given = module.layer_name
            if given and given not in (first, *others):
                where = repr(first) if first else "the root, whose name is empty"
                problems.append(
                    f"{type(module).__name__} was given prefix={given!r}, but in the tree it is {where}; "
                    "correct the prefix, or leave it out: layers are named once the tree exists"
                )
            else:
                module.layer_name = first
    return problems
