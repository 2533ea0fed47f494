"""From a plan to a model: construction, names, loading.

`policyquant.build` is this package and the function of that name at once: importing any module of the package would
otherwise take the function's place.
"""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


class _CallablePackage(ModuleType):
    def __call__(self, *args: Any, **keywords: Any) -> nn.Module:
        from policyquant.build.build import build

        return build(*args, **keywords)

    @property
    def __signature__(self) -> inspect.Signature:
        from policyquant.build.build import build

        return inspect.signature(build)


sys.modules[__name__].__class__ = _CallablePackage
