"""Which modules belong to a built model, and layers that refuse to run.

A built model's modules each carry a mark: the decisions that the model came from, and the module's name. It holds no
tensor, is no part of the state dict, and travels with pickle and deepcopy.
"""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, Protocol

import torch
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

from policyquant.errors import BuildError
from policyquant.methods.base import WeightLayer as Layer
from policyquant.methods.unquantized import Unquantized
from policyquant.policy.scheme import Scheme

if TYPE_CHECKING:
    from policyquant.layers.base import WeightLayer
    from policyquant.quantized_tensor import QuantizedTensor

_MARK: Final = "_policyquant_place"


class ModelOrigin(Protocol):
    """What a built model came from; `policyquant.building.origin` has the class."""

    def on_added(self, parent: nn.Module, name: str, child: nn.Module) -> None:
        """`child` is about to be registered as `name` in a module of the model."""


class Place(NamedTuple):
    """Where a module stands in a built model."""

    origin: ModelOrigin
    name: str
    """Its name when it joined the model."""
    added: bool = False
    """Whether it was put into, or around, a built layer: what it holds is then somebody else's, as an adapter's."""


def place_of(module: nn.Module) -> Place | None:
    """A module's place in the built model that it belongs to; None if it belongs to none."""
    return module.__dict__.get(_MARK)


def mark(module: nn.Module, place: Place) -> None:
    """Make a module part of a built model."""
    # Not by setattr, which a module's author may have defined anew.
    module.__dict__[_MARK] = place


_install_lock = threading.Lock()
_installed: Final[list[Any]] = []


def watch_registrations() -> None:
    """From now on, what is registered in a module of a built model is handed to its origin first.

    The hook is global to the process, and stays: for modules of no built model it is one look into a dict.
    """
    with _install_lock:
        if not _installed:
            _installed.append(register_module_module_registration_hook(_on_registration))


def _on_registration(module: nn.Module, name: str, child: object) -> None:
    place = place_of(module)
    if place is not None and isinstance(child, nn.Module) and place_of(child) is None:
        place.origin.on_added(module, name, child)


def running_built_module() -> tuple[nn.Module, str] | None:
    """The module of a built model whose `forward` is running, with `file:line` of what it does; None if none is."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "forward" and code.co_argcount:
            module = frame.f_locals.get(code.co_varnames[0])
            if isinstance(module, nn.Module) and place_of(module) is not None:
                return module, f"{code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return None


class Refusing(Unquantized):
    """The method of a layer that must not run: it says why."""

    def __init__(self, scheme: Scheme, reason: str) -> None:
        super().__init__(scheme)
        self.reason = reason

    def apply(self, layer: Layer, x: torch.Tensor | QuantizedTensor) -> NoReturn:
        """Raises:
        BuildError: always.
        """
        raise BuildError(self.reason)

    def apply_experts(self, layer: Layer, x: torch.Tensor | QuantizedTensor, counts: list[int]) -> NoReturn:
        """Raises:
        BuildError: always.
        """
        raise BuildError(self.reason)

    def embed(self, layer: Layer, ids: torch.Tensor) -> NoReturn:
        """Raises:
        BuildError: always.
        """
        raise BuildError(self.reason)

    def dequantize(self, layer: Layer) -> NoReturn:
        """Raises:
        BuildError: always.
        """
        raise BuildError(self.reason)


def refuse(layer: WeightLayer, reason: str) -> None:
    """Let a layer raise a `BuildError` with this reason wherever it is used, until it takes a method."""
    layer.note_method(Refusing(layer.scheme, reason))
    layer.as_stored = False


def refuse_if_made_in_forward(layer: WeightLayer) -> None:
    """A layer that is made while a built model runs has no method before it is registered: no plan can have named it.

    Layers are made rarely, so this is looked for there, and costs a forward nothing.
    """
    running = running_built_module()
    if running is None:
        return
    module, line = running
    kind = type(layer).__name__
    refuse(
        layer,
        f"{kind} made at {line}, while {type(module).__name__} {_name(module)} of a built model ran, belongs to no"
        " model: no policy decides about it. Make it in `__init__`, or register it before it is used"
        f" (`self.name = {kind}(...)`); for a product without a layer, call torch.nn.functional.linear",
    )


def _name(module: nn.Module) -> str:
    place = place_of(module)
    return repr(place.name) if place is not None and place.name else "at the root"
