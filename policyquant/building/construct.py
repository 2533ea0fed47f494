"""Runs a user's factory so that parameters cost nothing and everything else is as construction on the CPU makes it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from torch import nn

from policyquant.building.layer_names import all_names, name_layers
from policyquant.building.leftovers import lazy_parameters, stray_layers, valueless_tensors
from policyquant.building.listed import folded
from policyquant.building.meta_parameters import noticing, recording
from policyquant.building.user_code import line_that_raised
from policyquant.errors import BuildError

_SPEAKS_OF_META: Final = re.compile(
    r"\bmeta[ '\"]*(tensor|device|backend)|device[=: '\"]*meta\b|at meta\b|register_meta|incompatible tensor type",
    re.IGNORECASE,
)


def construct(factory: Callable[[], nn.Module]) -> nn.Module:
    """The model that `factory` makes, with parameters on meta; buffers and tensor attributes are real.

    A parameter keeps its shape, dtype, class, attributes and identity (tied ones stay one object). Modules that were
    made before the factory ran keep their real parameters. A buffer drawn at random after a parameter was initialised
    gets other numbers than on the CPU, since initialising on meta draws none.

    Raises:
        BuildError: the factory returned no module, needs the values of a parameter, left layers outside the tree or
            tensors without values, uses lazy modules, or gave a layer a `prefix` that is not its name; all problems
            in one message. Other exceptions of the factory pass through.
    """
    with recording() as recorder:
        root = _run(factory)
    _check(root, lambda names: [*recorder.lazy, *stray_layers(root, recorder)])
    return root


def make(factory: Callable[[], nn.Module]) -> nn.Module:
    """The model that `factory` makes, as it is, with its layers named. It may be one that was made before.

    Raises:
        BuildError: the factory returned no module, left layers outside the tree that it made, or there are tensors
            without values or shapes, or a layer with a `prefix` that is not its name; all problems in one message.
            Exceptions of the factory pass through.
    """
    with noticing() as recorder:
        root = factory()
    _check(root, lambda names: [*lazy_parameters(names), *stray_layers(root, recorder)])
    return root


def _check(root: object, unfinished: Callable[[dict[nn.Module, tuple[str, ...]]], list[str]]) -> None:
    if not isinstance(root, nn.Module):
        raise BuildError(f"the factory returned {type(root).__name__}, expected an nn.Module")
    names = all_names(root)
    problems = [*unfinished(names), *valueless_tensors(names), *name_layers(names)]
    if problems:
        raise BuildError("\n".join(folded(problems)))


def _run(factory: Callable[[], nn.Module]) -> nn.Module:
    try:
        return factory()
    except (RuntimeError, TypeError) as error:
        if not _SPEAKS_OF_META.search(str(error)):
            raise
        raise BuildError(
            f"{line_that_raised(error.__traceback__)} needs the values of a parameter, or moves it to a device; "
            "parameters have no values during construction, they come from the checkpoint later: compute from them "
            f"in forward, and leave out moves to a device ({str(error).splitlines()[0]})"
        ) from error
