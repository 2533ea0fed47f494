"""Which implementation of an operator runs: by what the machine can do, by what is installed, and by shape.

An operator lists its implementations in order of preference. `choose` takes the first that can run, and can say of each
other one why it did not; it is a pure function of a `Machine` and of shapes, so it answers for machines that are not
here too. A GPU on which nothing but plain torch can run an operator gets one warning for it.

What is forced by `force` or by the environment variable POLICYQUANT_KERNELS goes before the order:

    POLICYQUANT_KERNELS=triton                       this implementation, wherever an operator has it
    POLICYQUANT_KERNELS=scaled_mm=torch,norm=triton  of each operator named
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

import torch

VARIABLE: Final = "POLICYQUANT_KERNELS"
PLAIN: Final = "torch"
"""The implementation that every operator has: its CPU functions, which are plain torch and run on any device."""

Refusal = Callable[..., "str | None"]
"""(machine, *inputs, **out arguments) → why it cannot, or does not want to, run these; None: it can."""


class KernelUnavailableError(RuntimeError):
    """An implementation was asked for by name that the operator does not have or that cannot run here."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What implementations ask for."""

    device: str
    """ "cpu" or "cuda"."""
    capability: tuple[int, int] | None = None
    """The compute capability of a GPU."""
    multiprocessors: int = 0
    packages: frozenset[str] = frozenset()
    """Which of the optional packages that some implementation needs are installed."""
    interpreting: bool = False
    """Whether Triton's kernels are interpreted, on the CPU."""


@dataclass(frozen=True, slots=True)
class Implementation:
    """One way to run an operator.

    Args:
        name: what it is forced by and counted under: "triton", "cuda", "torch_scaled_mm", "deep_gemm", …
        function: "module:function"; takes the arguments of the operator's `.out` overload and writes into those.
            Imported when first chosen.
        package: the package that it needs.
        capability: the least compute capability that it needs.
        below: the compute capability from which on it does not run.
        refuses: what else speaks against it.
    """

    name: str
    function: str
    package: str | None = None
    capability: tuple[int, int] = (0, 0)
    below: tuple[int, int] | None = None
    refuses: Refusal | None = None

    def load(self) -> Callable[..., None]:
        """The function."""
        return _loaded(self.function)

    def why_not(self, machine: Machine) -> str | None:
        """Why it cannot run there whatever the shapes; None: it can."""
        if self.name == PLAIN:
            return None
        if self.package is not None and self.package not in machine.packages:
            return f"{self.package} is not installed"
        if machine.device == "cpu":
            interpreted = self.name == "triton" and machine.interpreting
            return None if interpreted else "it needs a GPU"
        found = machine.capability or (0, 0)
        if found < self.capability:
            return f"it needs compute capability {_dotted(self.capability)}, found {_dotted(found)}"
        if self.below is not None and found >= self.below:
            return f"it needs a compute capability below {_dotted(self.below)}, found {_dotted(found)}"
        return None


def triton(module: str, operator: str, **conditions: Any) -> Implementation:
    """The Triton implementation in `kernels/triton/<module>.py`, a function named as the operator."""
    conditions.setdefault("capability", (8, 9))
    return Implementation("triton", f"policyquant.kernels.triton.{module}:{operator}", "triton", **conditions)


_implementations: dict[str, tuple[Implementation, ...]] = {}
forced: dict[str, str] = {}
"""What is forced now: operator, or "*" for all → the name of the implementation."""
launches: Counter[tuple[str, str]] = Counter()
"""(operator, implementation) → how often it ran since the process began, or since `launches.clear()`."""


def register(operator: str, implementations: tuple[Implementation, ...]) -> None:
    """Give an operator its implementations, the preferred first; plain torch is added as the last."""
    _implementations[operator] = (*implementations, Implementation(PLAIN, ""))


def operators() -> Mapping[str, tuple[Implementation, ...]]:
    """All operators and their implementations, the preferred first."""
    return _implementations


@cache
def _loaded(function: str) -> Callable[..., None]:
    module, _, name = function.partition(":")
    loaded: Callable[..., None] = getattr(import_module(module), name)
    return loaded


@cache
def machine(device: str = "cpu", index: int = 0) -> Machine:
    """The machine at hand, as seen from one of its devices."""
    wanted = {each.package for every in _implementations.values() for each in every if each.package is not None}
    packages = frozenset(package for package in wanted if find_spec(package) is not None)
    if device != "cuda":
        # Triton reads it when a kernel is defined.
        interpreting = os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")
        return Machine("cpu", packages=packages, interpreting=interpreting)
    properties = torch.cuda.get_device_properties(index)
    return Machine("cuda", (properties.major, properties.minor), properties.multi_processor_count, packages)


def verdicts(
    operator: str, on: Machine, inputs: tuple[Any, ...], outs: Mapping[str, Any]
) -> Iterator[tuple[Implementation, str | None]]:
    """Each implementation of an operator with the reason why it does not run these inputs; None: it can."""
    for each in _implementations[operator]:
        reason = each.why_not(on)
        if reason is None and each.refuses is not None:
            reason = each.refuses(on, *inputs, **outs)
        yield each, reason


def choose(operator: str, on: Machine, inputs: tuple[Any, ...], outs: Mapping[str, Any]) -> Implementation:
    """The implementation that runs these inputs. Only shapes, strides and dtypes are read, so meta tensors will do.

    Raises:
        KernelUnavailableError: one is forced for this operator by its name and cannot run.
    """
    name = forced.get(operator) or forced.get("*")
    if name is not None:
        chosen = _asked_for(operator, name, on, inputs, outs)
        if chosen is not None:
            return chosen
    if on.device == "cpu":
        return _implementations[operator][-1]
    for each, reason in verdicts(operator, on, inputs, outs):
        if reason is None:
            if each.name == PLAIN:
                _warn_of_plain(operator, on)
            return each
    raise AssertionError("plain torch refuses nothing")


def _asked_for(
    operator: str, name: str, on: Machine, inputs: tuple[Any, ...], outs: Mapping[str, Any]
) -> Implementation | None:
    """The implementation of this name. None if all operators were to use it and this one cannot."""
    reason: str | None = f"it has {', '.join(each.name for each in _implementations[operator])}"
    for each, why_not in verdicts(operator, on, inputs, outs):
        if each.name == name:
            if why_not is None:
                return each
            reason = why_not
    if operator in forced:
        raise KernelUnavailableError(f"{operator} cannot run as {name!r}: {reason}")
    return None


@cache
def _warn_of_plain(operator: str, on: Machine) -> None:
    """Once for each operator."""
    reasons = "; ".join(f"{each.name}: {each.why_not(on)}" for each in _implementations[operator][:-1])
    if reasons:
        warnings.warn(f"{operator} runs in plain torch, which is slow: {reasons}", RuntimeWarning, stacklevel=4)


@contextmanager
def force(name: str | None = None, **by_operator: str) -> Iterator[None]:
    """Inside, all operators run by this implementation if they can, and those named by theirs or not at all.

    Raises:
        KernelUnavailableError: an operator or an implementation of these names does not exist.
    """
    before = dict(forced)
    forced.update(_checked({} if name is None else {"*": name}, by_operator))
    try:
        yield
    finally:
        forced.clear()
        forced.update(before)


def _checked(everywhere: Mapping[str, str], by_operator: Mapping[str, str]) -> dict[str, str]:
    known = {each.name for every in _implementations.values() for each in every}
    for operator, name in (*everywhere.items(), *by_operator.items()):
        if operator != "*" and operator not in _implementations:
            raise KernelUnavailableError(f"no operator {operator!r}; there are {', '.join(sorted(_implementations))}")
        names = known if operator == "*" else {each.name for each in _implementations[operator]}
        if name not in names:
            whose = "no operator" if operator == "*" else f"{operator} does not have"
            raise KernelUnavailableError(
                f"{whose} {'has ' if operator == '*' else ''}an implementation {name!r}; there are"
                f" {', '.join(sorted(names))}"
            )
    return {**everywhere, **by_operator}


def force_as_environment_says() -> None:
    """Read POLICYQUANT_KERNELS; called once, when all operators are registered.

    Raises:
        KernelUnavailableError: it names an operator or an implementation that does not exist.
    """
    entries = [entry.strip() for entry in os.environ.get(VARIABLE, "").split(",") if entry.strip()]
    everywhere, by_operator = {}, {}
    for entry in entries:
        operator, equals, name = entry.partition("=")
        if equals:
            by_operator[operator.strip()] = name.strip()
        else:
            everywhere["*"] = entry
    try:
        forced.update(_checked(everywhere, by_operator))
    except KernelUnavailableError as error:
        raise KernelUnavailableError(f"{VARIABLE}: {error}") from None


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
