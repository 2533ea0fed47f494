"""Methods by name: ours, imported when first asked for, and those that others bring.

`register` makes a method known in this process. Another package adds one by an entry point of the group
`policyquant.methods`, whose name is the method's and whose value is a `QuantMethod` subclass: nothing of ours needs to
be touched, or imported, for that, and the command line knows it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from inspect import isabstract
from typing import TYPE_CHECKING, Any, Final, TypeVar

from policyquant.errors import PolicyQuantError, did_you_mean
from policyquant.extras import require
from policyquant.policy.methods import METHODS, entry_points

if TYPE_CHECKING:
    from policyquant.methods.base import QuantMethod
    from policyquant.policy.scheme import Scheme

BUILT_IN: Final[Mapping[str, str]] = {
    "none": "policyquant.methods.unquantized",
    "fp8": "policyquant.methods.fp8",
    "int8_weight_only": "policyquant.methods.int8_weight_only",
}
"""Methods that run → the module that has each. A method that is not finished is not here."""

_classes: dict[str, type[QuantMethod]] = {}

Method = TypeVar("Method", bound="type[Any]")


def register(method: Method) -> Method:
    """Class decorator: make a `QuantMethod` known under its spec's name, to policies too.

    Raises:
        PolicyQuantError: another class has that name already, the class lacks a part of the contract, its spec says
            what is not understood (a kind, a dtype), or it is not the one that policyquant has under that name.
    """
    name = method.spec.name
    if isabstract(method):
        lacking = ", ".join(sorted(method.__abstractmethods__))
        raise PolicyQuantError(
            f"method {name!r} of {method.__module__}.{method.__qualname__} cannot be used: it does not define {lacking}"
        )
    known = _classes.get(name, method)
    if known is not method and (known.__module__, known.__qualname__) != (method.__module__, method.__qualname__):
        raise PolicyQuantError(
            f"two methods are named {name!r}: {known.__module__}.{known.__qualname__} and"
            f" {method.__module__}.{method.__qualname__}"
        )
    METHODS.add(method.spec)
    _classes[name] = method
    return method


def runnable() -> list[str]:
    """Names of the methods that run here, ours first. Imports none of them."""
    return [*BUILT_IN, *sorted({*entry_points(), *_classes} - {*BUILT_IN})]


def method_class(name: str) -> type[QuantMethod]:
    """The class of a method.

    Raises:
        PolicyQuantError: there is none of this name, policies know it but nothing runs it yet, or torch is missing.
    """
    if name not in _classes:
        if name in BUILT_IN:
            require("torch", extra="torch", by=f"the code of method {name!r}")
            import_module(BUILT_IN[name])
        elif name in entry_points():
            _classes[name] = register(entry_points()[name].load())
        else:
            run = f"methods that run: {', '.join(runnable())}"
            if name in METHODS:
                raise PolicyQuantError(f"method {name!r} can be planned, but nothing runs it yet; {run}")
            raise PolicyQuantError(f"no method is named {name!r}{did_you_mean(name, runnable())} ({run})")
    return _classes[name]


def method_for(scheme: Scheme) -> QuantMethod:
    """The method that stores and applies a layer under a scheme.

    Raises:
        PolicyQuantError: nothing runs the scheme's method.
    """
    return method_class(scheme.method)(scheme)
