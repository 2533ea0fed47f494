"""A parameter with other data: what its author set on it stays."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def parameter_like(parameter: torch.Tensor, data: torch.Tensor) -> nn.Parameter:
    """A parameter of `data` with the class and the attributes of another, taking gradients if that does."""
    kind: Any = type(parameter)
    made: nn.Parameter
    if nn.Parameter in kind.__mro__[1:]:
        made = torch.Tensor._make_subclass(kind, data, parameter.requires_grad)
    else:
        made = nn.Parameter(data, requires_grad=parameter.requires_grad)
    made.__dict__.update(parameter.__dict__)
    return made
