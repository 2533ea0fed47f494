"""Turns every parameter into a meta tensor at the moment a module registers it, and leaves everything else real.

Construction under `torch.device("meta")` would put rotary tables and masks on meta too. torch's hook for the
registration of parameters touches parameters alone; initialisation in `__init__` then runs on meta and costs nothing.
The hook is global to the process, so it acts only in threads that are inside `recording`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary, WeakTensorKeyDictionary

from policyquant.building.parameter_like import parameter_like
from policyquant.building.user_code import place_of_making
from policyquant.layers.placeholders import placeholders


class Recorder:
    """What one construction has seen. It keeps nothing alive: neither modules nor the real parameters."""

    def __init__(self, *, on_meta: bool) -> None:
        self.puts_on_meta = on_meta
        # A parameter registered under a second name must become the object it became under the first.
        self._replaced = WeakTensorKeyDictionary()
        self._places: Any = WeakIdKeyDictionary()  # by identity, whatever `__eq__` a module defines
        self.lazy: list[str] = []
        """One line for each module with a parameter whose shape is not known yet."""

    def notice(self, module: nn.Module) -> None:
        """Remember where a module was made, at the first thing it registers."""
        if module not in self._places:
            self._places[module] = place_of_making(module, sys._getframe(1))

    def noticed(self) -> list[tuple[nn.Module, str]]:
        """Every module that registered something and is still alive, with the place where it was made."""
        return list(self._places.items())

    def on_meta(self, module: nn.Module, name: str, parameter: nn.Parameter) -> nn.Parameter:
        """The meta parameter that stands for a parameter about to be registered."""
        self.notice(module)
        known: Any = parameter  # torch's types hold a Parameter to be never lazy
        if is_lazy(known):
            self.lazy.append(
                f"{type(module).__name__} made at {self._places[module]}: its {name!r} has no shape before a first "
                f"forward, so no plan can be made for it; use the class with all sizes given, as nn.Linear"
            )
            return parameter
        if parameter.is_meta:
            return parameter
        if parameter not in self._replaced:
            self._replaced[parameter] = parameter_like(parameter, parameter.detach().to("meta"))
        replaced: nn.Parameter = self._replaced[parameter]
        return replaced


_DRAWS: Final = frozenset({torch.ops.aten.normal_.default, torch.ops.aten.uniform_.default})
"""On meta these draw nothing, but torch finds that out in Python, for which it imports torch.compile's machinery: most
of a second."""


class MixedDevices(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operators that read a parameter without values together with a real tensor and return a real tensor.

    Most of torch refuses that itself; `mm` and `conv` read memory that is not there and return what they find.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # What torch asks of modes. Its default imports torch.compile's machinery too.

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _DRAWS and args[0].is_meta:
            return args[0]
        result = func(*args, **(kwargs or {}))
        if any(not tensor.is_meta for tensor in _tensors((result,))):
            given = {tensor.is_meta for tensor in _tensors((*args, *(kwargs or {}).values()))}
            if len(given) > 1:
                raise RuntimeError(f"{func} computes with a meta tensor, which holds no values")
        return result


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors among what an operator takes or returns, which nests them in lists at most."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


class _Active(threading.local):
    def __init__(self) -> None:
        self.recorders: list[Recorder] = []


_active = _Active()
_install_lock = threading.Lock()
_installed: list[Any] = []


def _parameter_hook(module: nn.Module, name: str, parameter: nn.Parameter) -> Any:
    if not _active.recorders:
        return None
    recorder = _active.recorders[-1]
    if recorder.puts_on_meta:
        return recorder.on_meta(module, name, parameter)
    recorder.notice(module)
    return None


def _module_hook(module: nn.Module, name: str, child: nn.Module) -> None:
    if _active.recorders:
        _active.recorders[-1].notice(module)


def _install() -> None:
    """Install the hooks, once in a process: taking them out again would pull them from under another thread."""
    with _install_lock:
        if not _installed:
            _installed.append(register_module_parameter_registration_hook(_parameter_hook))
            _installed.append(register_module_module_registration_hook(_module_hook))


def is_recording() -> bool:
    """Whether this thread is inside `recording`."""
    return bool(_active.recorders) and _active.recorders[-1].puts_on_meta


@contextmanager
def paused() -> Iterator[None]:
    """Within it, in this thread, parameters stay as they are, though a recording may be under way."""
    recorders, _active.recorders = _active.recorders, []
    try:
        with placeholders(False):
            yield
    finally:
        _active.recorders = recorders


@contextmanager
def recording() -> Iterator[Recorder]:
    """Within it, in this thread, parameters that are registered become meta tensors."""
    with _active_recorder(Recorder(on_meta=True)) as recorder, MixedDevices(), placeholders(True):  # type: ignore[no-untyped-call]
        yield recorder


@contextmanager
def noticing() -> Iterator[Recorder]:
    """Within it, in this thread, what registers something is noticed, and nothing is changed."""
    with _active_recorder(Recorder(on_meta=False)) as recorder:
        yield recorder


@contextmanager
def _active_recorder(recorder: Recorder) -> Iterator[Recorder]:
    _install()
    _active.recorders.append(recorder)
    try:
        yield recorder
    finally:
        _active.recorders.pop()
