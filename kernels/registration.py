"""How an operator is made known to torch: its schema, its `.out` overload, its shapes, and what runs on each device.

Registered through `torch.library.Library`: the decorator of `torch.library.custom_op` costs three times as much a call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from policyquant.kernels import dispatch
from policyquant.kernels.dispatch import Implementation

# torch leaves this without types.
_new_library: Any = torch.library.Library
_library = _new_library("policyquant", "DEF")

_AUTOCAST = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}


def _without_autocast(name: str, overload: str, device: str) -> Callable[..., Any]:
    """The operator as it is outside autocast, which would round the float32 products inside it."""

    def run(*inputs: Any, **keywords: Any) -> Any:
        with torch.autocast(device, enabled=False):
            return getattr(getattr(torch.ops.policyquant, name), overload)(*inputs, **keywords)

    return run


def define(
    name: str,
    arguments: str,
    results: dict[str, str],
    cpu: Callable[..., Any],
    fake: Callable[..., Any],
    from_out: str | None = None,
    cpu_out: Callable[..., None] | None = None,
    implementations: tuple[Implementation, ...] = (),
) -> None:
    """Define `name` and `name.out`.

    Args:
        arguments: of the schema, without the parentheses.
        results: name of each out argument → its alias letter.
        cpu: plain torch, for any device: takes the arguments and returns new results.
        fake: the same without data. What it returns, shapes, strides and dtypes, is what other implementations are
            given to write into.
        from_out: a last argument (a dtype) that the `.out` overload reads off its first result instead.
        cpu_out: writes the results where they belong; None: they are computed, then copied there.
        implementations: beside plain torch, the preferred first.
    """
    dispatch.register(name, implementations)
    kinds = ", ".join("Tensor" for _ in results)
    _library.define(f"{name}({arguments}) -> {kinds if len(results) == 1 else f'({kinds})'}")
    kept = arguments.rsplit(", ", 1)[0] if from_out is not None else arguments
    outs = ", ".join(f"Tensor({alias}!) {out}" for out, alias in results.items())
    _library.define(f"{name}.out({kept}, *, {outs}) -> ()")
    operator = _Operator(name, tuple(results), cpu, fake, from_out is not None, cpu_out)
    _library.impl(name, operator.on_cpu, "CPU")
    _library.impl(f"{name}.out", operator.on_cpu_out, "CPU")
    _library.impl(name, operator.dispatched, "CUDA")
    _library.impl(f"{name}.out", operator.dispatched_out, "CUDA")
    for device, key in _AUTOCAST.items():
        _library.impl(name, _without_autocast(name, "default", device), key)
        _library.impl(f"{name}.out", _without_autocast(name, "out", device), key)
    torch.library.register_fake(f"policyquant::{name}", fake, lib=_library)
    torch.library.register_fake(f"policyquant::{name}.out", _write_nothing, lib=_library)


def define_in_place(
    name: str,
    arguments: str,
    cpu: Callable[..., None],
    check: Callable[..., None],
    implementations: tuple[Implementation, ...] = (),
) -> None:
    """Define `name`, which writes into those of its arguments that the schema marks with (a!), and returns nothing.

    Args:
        arguments: of the schema, without the parentheses.
        cpu: plain torch, for any device.
        check: looks at shapes and dtypes alone, before anything is written, and stands for the operator without data.
        implementations: beside plain torch, the preferred first; they take the arguments as they are.
    """
    dispatch.register(name, implementations)
    _library.define(f"{name}({arguments}) -> ()")
    operator = _InPlace(name, (), cpu, check, False, cpu)
    _library.impl(name, operator.on_cpu, "CPU")
    _library.impl(name, operator.dispatched, "CUDA")
    for device, key in _AUTOCAST.items():
        _library.impl(name, _without_autocast(name, "default", device), key)
    torch.library.register_fake(f"policyquant::{name}", check, lib=_library)


def _write_nothing(*inputs: Any, **targets: Any) -> None:
    return None


class _Operator:
    """What is called for an operator, on each device. The arguments of `define` say what the fields are."""

    def __init__(
        self,
        name: str,
        results: tuple[str, ...],
        cpu: Callable[..., Any],
        fake: Callable[..., Any],
        dtype_from_out: bool,
        cpu_out: Callable[..., None] | None,
    ) -> None:
        self.name = name
        self.results = results
        self.cpu = cpu
        self.fake = fake
        self.dtype_from_out = dtype_from_out
        self.cpu_out = cpu_out
        self.counted = (name, dispatch.PLAIN)

    def on_cpu(self, *inputs: Any) -> Any:
        if dispatch.forced():
            return self.dispatched(*inputs)
        dispatch.launches[self.counted] += 1
        return self.cpu(*inputs)

    def on_cpu_out(self, *inputs: Any, **targets: Any) -> None:
        if dispatch.forced():
            self.dispatched_out(*inputs, **targets)
        else:
            self._plain(inputs, targets)

    def dispatched(self, *inputs: Any) -> Any:
        """New results, by the implementation that is chosen."""
        values = self.fake(*inputs)
        targets = self._named(values)
        kept = inputs[:-1] if self.dtype_from_out else inputs
        self._run(dispatch.choose(self.name, _machine(kept, targets), kept, targets), kept, targets)
        return values

    def dispatched_out(self, *inputs: Any, **targets: Any) -> None:
        """The same where the results belong. Implementations write into tensors laid out as the operator does it."""
        chosen = dispatch.choose(self.name, _machine(inputs, targets), inputs, targets)
        if chosen.name == dispatch.PLAIN:
            self._plain(inputs, targets)
            return
        own = self._named(self.fake(*self._with_dtype(inputs, targets)))
        for out, value in own.items():
            _check(self.name, targets[out], value)
        if all(targets[out].stride() == value.stride() for out, value in own.items()):
            self._run(chosen, inputs, targets)
            return
        self._run(chosen, inputs, own)
        for out, value in own.items():
            targets[out].copy_(value)

    def _named(self, values: Any) -> dict[str, torch.Tensor]:
        return dict(zip(self.results, values if isinstance(values, tuple) else (values,), strict=True))

    def _with_dtype(self, inputs: tuple[Any, ...], targets: dict[str, torch.Tensor]) -> tuple[Any, ...]:
        """All arguments, where the `.out` overload reads one off its first result."""
        return (*inputs, targets[self.results[0]].dtype) if self.dtype_from_out else inputs

    def _run(self, chosen: Implementation, inputs: tuple[Any, ...], targets: dict[str, torch.Tensor]) -> None:
        if chosen.name == dispatch.PLAIN:
            self._plain(inputs, targets)
            return
        try:
            self._call(chosen, inputs, targets)
        except Exception as error:
            instead = dispatch.instead_of(chosen, error, self.name, _machine(inputs, targets), inputs, targets)
            self._run(instead, inputs, targets)
        else:
            dispatch.launches[self.name, chosen.name] += 1

    def _call(self, chosen: Implementation, inputs: tuple[Any, ...], targets: dict[str, torch.Tensor]) -> None:
        device = _device(inputs, targets)
        if device.type == "cuda" and device.index != torch.cuda.current_device():
            with torch.cuda.device(device):
                chosen.load()(*inputs, **targets)
        else:
            chosen.load()(*inputs, **targets)

    def _plain(self, inputs: tuple[Any, ...], targets: dict[str, torch.Tensor]) -> None:
        dispatch.launches[self.counted] += 1
        if self.cpu_out is not None:
            self.cpu_out(*inputs, **targets)
            return
        values = self.cpu(*self._with_dtype(inputs, targets))
        for out, value in zip(self.results, values if isinstance(values, tuple) else (values,), strict=True):
            target = targets[out]
            _check(self.name, target, value)
            target.copy_(value)


class _InPlace(_Operator):
    """An operator that writes into its arguments: there is nothing to return, and `fake` only checks."""

    def on_cpu(self, *inputs: Any) -> None:
        self.fake(*inputs)
        if dispatch.forced():
            self._run(dispatch.choose(self.name, _machine(inputs, {}), inputs, {}), inputs, {})
        else:
            self._plain(inputs, {})

    def dispatched(self, *inputs: Any) -> None:
        self.fake(*inputs)
        self._run(dispatch.choose(self.name, _machine(inputs, {}), inputs, {}), inputs, {})


def _device(inputs: tuple[Any, ...], targets: dict[str, torch.Tensor]) -> torch.device:
    """That of the results, or of the first tensor that an operator without results is given."""
    for value in (*targets.values(), *inputs):
        if isinstance(value, torch.Tensor):
            return value.device
    raise TypeError("an operator takes a tensor")


def _machine(inputs: tuple[Any, ...], targets: dict[str, torch.Tensor]) -> dispatch.Machine:
    device = _device(inputs, targets)
    return dispatch.machine(device.type, device.index or 0)


def _check(name: str, target: torch.Tensor, value: torch.Tensor) -> None:
    """An out tensor against a result laid out as the operator lays it out."""
    if target.shape != value.shape or target.dtype != value.dtype:
        raise ValueError(
            f"{name}: an out tensor is {list(target.shape)} {target.dtype}, expected {list(value.shape)} {value.dtype}"
        )


def like(x: torch.Tensor, shape: tuple[Any, ...], dtype: torch.dtype) -> torch.Tensor:
    """A contiguous result of this shape, uninitialised, on the device of x."""
    return x.new_empty(shape, dtype=dtype)


def codes_and_row_scales(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes of the shape of x, and a float32 scale [..., 1] for each row."""
    return like(x, tuple(x.shape), dtype), like(x, (*x.shape[:-1], 1), torch.float32)


CODES = {"out": "a", "out_scale": "b"}
"""The results of operators that encode."""
