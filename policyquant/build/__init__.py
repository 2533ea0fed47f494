"""From a plan to a model: construction, names, loading.

`policyquant.build` is this package and the function of that name at once: importing any module of the package would
otherwise take the function's place.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from policyquant.extras import require

if TYPE_CHECKING:
    from torch import nn


def _function() -> Callable[..., nn.Module]:
    # Not of the whole package: what is wrong with a plan is told without torch.
    require("torch", extra="torch", by="policyquant.build")
    from policyquant.build.build import build

    return build


class _CallablePackage(ModuleType):
    def __call__(self, *args: Any, **keywords: Any) -> nn.Module:
        return _function()(*args, **keywords)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(_function())


sys.modules[__name__].__class__ = _CallablePackage
