"""Building does not depend on what the caller has switched on: a default device, a construction under way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

from policyquant.building.meta_parameters import paused
from policyquant.errors import BuildError


@contextmanager
def plain_surroundings() -> Iterator[None]:
    """Within it tensors are made on the CPU unless told otherwise, and parameters stay where they are made.

    A default device, as `torch.device("meta")` around the call, would take the place of what is computed on the way; a
    factory that is being constructed on meta would take the values of a model that is built inside it.

    Raises:
        BuildError: parameters are put on meta as they are registered, as accelerate's `init_empty_weights` does.
    """
    with ExitStack() as stack:
        stack.enter_context(paused())
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        probe = nn.Module()
        probe.register_parameter("probe", nn.Parameter(torch.empty(0)))
        if next(probe.parameters()).is_meta:
            raise BuildError(
                "something puts parameters on meta as they are registered, as accelerate's init_empty_weights does;"
                " nothing can be loaded within it. Leave it out: build constructs on meta by itself"
            )
        yield
