"""What a caller asks of a build, checked before anything is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import nn

from policyquant.errors import BuildError

_DTYPES: Final = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


def check_factory(factory: object) -> None:
    """
    Raises:
        BuildError: it is no function that could make a model.
    """
    kind = type(factory).__name__
    if isinstance(factory, nn.Module):
        raise BuildError(
            f"the factory is a function that makes the model, found the {kind} itself; without a"
            " source, lambda: model quantizes it in place"
        )
    if not callable(factory):
        raise BuildError(f"the factory is a function that makes the model, found {kind}")


def check_model(model: object) -> None:
    """
    Raises:
        BuildError: it is no module.
    """
    if not isinstance(model, nn.Module):
        raise BuildError(f"the model is {type(model).__name__}, expected an nn.Module")


def checked_device(device: Any) -> torch.device:
    """The device, on which tensors can be made.

    Raises:
        BuildError: there is no such device here.
    """
    try:
        found = torch.device(device)
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        raise BuildError(f"device {str(device)!r} cannot be used here: {str(error).splitlines()[0]}") from None
    return found


def check_dtype(dtype: object) -> None:
    """
    Raises:
        BuildError: it is no dtype that a model computes in.
    """
    if dtype is not None and dtype not in _DTYPES:
        raise BuildError(f"dtype is one of {', '.join(map(str, _DTYPES))}, or None; found {dtype!r}")


def check_rename(rename: object) -> None:
    """
    Raises:
        BuildError: it is no mapping of strings to strings.
    """
    if rename is None:
        return
    found = f"found {type(rename).__name__}"
    if isinstance(rename, Mapping):
        wrong = [each for each in rename.items() if not all(isinstance(text, str) for text in each)]
        if not wrong:
            return
        found = "found {!r}: {!r}".format(*wrong[0])
    raise BuildError(f"rename maps regular expressions to replacements, all of them strings; {found}")
