"""Which implementation of an operator runs: by what the machine can do, by what is installed, and by shape.

An operator lists its implementations in order of preference. `choose` takes the first that can run, and `verdicts` says
of each other one why it cannot; both are pure functions of a `Machine` and of shapes, so they answer for machines that
are not here too. On a CPU plain torch runs. On a GPU, an operator that nothing but plain torch can run gets one
warning, and so does an implementation that turns out not to compile there; the next one in order takes its place.

What is forced by `force`, or by the environment variable POLICYQUANT_KERNELS, goes before the order:

    POLICYQUANT_KERNELS=triton                           this implementation, wherever an operator can run by it
    POLICYQUANT_KERNELS=scaled_mm=torch,rms_norm=triton  of each operator named: this one or an error
"""

from __future__ import annotations

import difflib
import os
import subprocess
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Final

import torch

from policyquant.kernels.machine import CUDA_LIBRARY, Machine, dotted, machine

__all__ = ["Implementation", "KernelUnavailableError", "Machine", "choose", "force", "launches", "machine", "verdicts"]

VARIABLE: Final = "POLICYQUANT_KERNELS"
PLAIN: Final = "torch"
"""The implementation that every operator has: its CPU functions, which are plain torch and run on any device."""

Refusal = Callable[..., "str | None"]
"""(machine, *inputs, **out arguments) → why it cannot, or does not want to, run these; None: it can."""

_EVERY: Final = "*"
_FNUZ: Final = frozenset({torch.float8_e4m3fnuz, torch.float8_e5m2fnuz})


class KernelUnavailableError(RuntimeError):
    """An implementation was asked for by name that the operator does not have or that cannot run here."""


@dataclass(frozen=True, slots=True)
class Implementation:
    """One way to run an operator.

    Args:
        name: what it is forced by and counted under: "triton", "cuda", "torch_scaled_mm", "deep_gemm", …
        function: "module:function"; takes the arguments of the operator's `.out` overload and writes into those.
            Imported when first chosen.
        package: the package that it needs, one of `machine.OPTIONAL_PACKAGES` or `CUDA_LIBRARY`.
        capability: the least compute capability that it needs.
        below: the compute capability from which on it does not run.
        refuses: what else speaks against it. Called with every call of the operator, so it reads a few shapes,
            strides and dtypes, and no values.
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

    def why_not(self, on: Machine) -> str | None:
        """Why it cannot run there whatever the shapes; None: it can."""
        if self.name == PLAIN:
            return None
        if self.package is not None and self.package not in on.packages:
            built = self.package == CUDA_LIBRARY
            return "not built (policyquant kernels build)" if built else f"{self.package} is not installed"
        if on.device == "cpu":
            return None if self.package in on.on_cpu else "it needs a GPU"
        if on.rocm:
            return "it is for NVIDIA's GPUs, and this torch is for AMD's"
        found = on.capability or (0, 0)
        if found < self.capability:
            return f"it needs compute capability {dotted(self.capability)}, found {dotted(found)}"
        if self.below is not None and found >= self.below:
            return f"it needs a compute capability below {dotted(self.below)}, found {dotted(found)}"
        return None


def triton(module: str, operator: str, **conditions: Any) -> Implementation:
    """The Triton implementation in `kernels/triton/<module>.py`, a function named as the operator.

    Unless `conditions` say otherwise, for compute capability 8.9, the first with FP8, to 10.x, the last that there are
    configurations for.
    """
    conditions = {"capability": (8, 9), "below": (11, 0), **conditions}
    return Implementation("triton", f"policyquant.kernels.triton.{module}:{operator}", "triton", **conditions)


def cuda(operator: str, **conditions: Any) -> Implementation:
    """The operator of this name in the CUDA library.

    Unless `conditions` say otherwise, for compute capability 8.0, where it encodes without FP8 instructions, to 10.x,
    the last that the library has code for.
    """
    conditions = {"capability": (8, 0), "below": (11, 0), **conditions}
    return Implementation("cuda", f"policyquant.kernels.cuda.library:{operator}", CUDA_LIBRARY, **conditions)


_implementations: dict[str, tuple[Implementation, ...]] = {}
_broken: dict[tuple[str, str, Machine], str] = {}
"""(operator, implementation, machine) → what happened when it was to be loaded or compiled."""
_asked: ContextVar[Mapping[str, str] | None] = ContextVar("asked", default=None)
_by_environment: dict[str, str] = {}
launches: Counter[tuple[str, str]] = Counter()
"""(operator, implementation) → how often it ran since the process began, or since `launches.clear()`. What a CUDA graph
replays is not counted again. Threads that call operators at once may miss each other's counts."""


def register(operator: str, implementations: tuple[Implementation, ...]) -> None:
    """Give an operator its implementations, the preferred first; plain torch is added as the last."""
    _implementations[operator] = (*implementations, Implementation(PLAIN, ""))
    _candidates.cache_clear()


def operators() -> Mapping[str, tuple[Implementation, ...]]:
    """All operators and their implementations, the preferred first."""
    return _implementations


@cache
def _loaded(function: str) -> Callable[..., None]:
    module, _, name = function.partition(":")
    loaded: Callable[..., None] = getattr(import_module(module), name)
    return loaded


def available(operator: str, on: Machine) -> Iterator[tuple[Implementation, str | None]]:
    """Each implementation of an operator with the reason why it runs no shapes there; None: it may run some."""
    for each in _implementations[operator]:
        yield each, each.why_not(on) or _broken.get((operator, each.name, on))


@cache
def _candidates(operator: str, on: Machine) -> tuple[Implementation, ...]:
    return tuple(each for each, reason in available(operator, on) if reason is None)


def verdicts(
    operator: str, on: Machine, inputs: tuple[Any, ...], outs: Mapping[str, Any]
) -> Iterator[tuple[Implementation, str | None]]:
    """Each implementation of an operator with the reason why it does not run these inputs; None: it can.

    Only shapes, strides and dtypes are read, so meta tensors will do.
    """
    for each, reason in available(operator, on):
        yield each, reason or _refusal(each, on, inputs, outs)


def _refusal(each: Implementation, on: Machine, inputs: tuple[Any, ...], outs: Mapping[str, Any]) -> str | None:
    if each.name == PLAIN:
        return None
    for value in (*inputs, *outs.values()):
        if isinstance(value, torch.Tensor) and value.dtype in _FNUZ:
            return (
                f"{str(value.dtype).removeprefix('torch.')} is AMD's format, with a largest value of its own (240 where"
                " e4m3fn has 448)"
            )
    return None if each.refuses is None else each.refuses(on, *inputs, **outs)


def choose(operator: str, on: Machine, inputs: tuple[Any, ...], outs: Mapping[str, Any]) -> Implementation:
    """The implementation that runs these inputs. Only shapes, strides and dtypes are read, so meta tensors will do.

    Raises:
        KernelUnavailableError: one is forced for this operator by its name and cannot run.
    """
    asked = forced()
    if asked:
        chosen = _asked_for(operator, asked, on, inputs, outs)
        if chosen is not None:
            return chosen
    if on.device == "cpu":
        return _implementations[operator][-1]
    for each in _candidates(operator, on):
        if _refusal(each, on, inputs, outs) is None:
            if each.name == PLAIN:
                _warn_of_plain(operator, on, inputs, outs)
            return each
    raise AssertionError("plain torch refuses nothing")


def _asked_for(
    operator: str, asked: Mapping[str, str], on: Machine, inputs: tuple[Any, ...], outs: Mapping[str, Any]
) -> Implementation | None:
    """The implementation that is forced. None if all operators were to use it and this one cannot."""
    name = asked.get(operator) or asked.get(_EVERY)
    refused = None
    for each, reason in verdicts(operator, on, inputs, outs):
        if each.name == name:
            if reason is None:
                return each
            refused = reason
    if operator in asked and refused is not None:
        raise KernelUnavailableError(f"{operator} cannot run as {name!r}: {refused}")
    return None


_warned: set[tuple[str, Machine]] = set()


def _warn_of_plain(operator: str, on: Machine, inputs: tuple[Any, ...], outs: Mapping[str, Any]) -> None:
    """Once for each operator and machine. Who asked for plain torch, or has no other, is not warned."""
    if (operator, on) in _warned:
        return
    _warned.add((operator, on))
    reasons = [f"{each.name}: {reason}" for each, reason in verdicts(operator, on, inputs, outs) if reason is not None]
    if reasons:
        warnings.warn(f"{operator} runs in plain torch, which is slow: {'; '.join(reasons)}", RuntimeWarning, 2)


def instead_of(
    failed: Implementation,
    error: Exception,
    operator: str,
    on: Machine,
    inputs: tuple[Any, ...],
    outs: Mapping[str, Any],
) -> Implementation:
    """What runs in place of an implementation that could not be loaded or compiled, with one warning.

    Every other error is raised again, and so is this one if the result shares memory with what it is computed from,
    which may have been overwritten by then. The interpreter's errors are a test's to see.

    Raises:
        KernelUnavailableError: it was forced for this operator by its name.
    """
    if on.device == "cpu" or not _is_of_making(error) or _overlap(inputs, outs):
        raise error
    reason = f"it cannot be made to run here: {_in_one_line(error)}"
    if operator in forced():
        raise KernelUnavailableError(f"{operator} cannot run as {failed.name!r}: {reason}") from error
    _broken[operator, failed.name, on] = reason
    _candidates.cache_clear()
    with warnings.catch_warnings():  # This one says all that the other would.
        warnings.simplefilter("ignore")
        chosen = choose(operator, on, inputs, outs)
    warnings.warn(f"{operator} runs as {chosen.name!r}, not as {failed.name!r}: {reason}", RuntimeWarning, 2)
    return chosen


_COMPILERS_SAY: Final = (
    "Failed to find C compiler",
    "PassManager::run failed",
    "device kernel image is invalid",
    "no kernel image is available",
    "compiled with an unsupported toolchain",
)
"""Parts of plain RuntimeErrors that come before anything has run: of Triton, and of the driver that loads its code."""


def _is_of_making(error: Exception) -> bool:
    """Whether an implementation could not be imported, compiled or loaded; nothing has been computed wrongly then."""
    if isinstance(error, (ImportError, OSError, subprocess.CalledProcessError)):
        return True
    if any(base.__name__ == "TritonError" for base in type(error).__mro__):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _COMPILERS_SAY)


def _overlap(inputs: tuple[Any, ...], outs: Mapping[str, Any]) -> bool:
    written = {out.untyped_storage().data_ptr() for out in outs.values() if out.numel()}
    return any(isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() in written for x in inputs)


def _in_one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1]}" if lines else type(error).__name__


def forced() -> Mapping[str, str]:
    """What is forced now, in this thread: operator, or "*" for all → the name of the implementation."""
    asked = _asked.get()
    return _by_environment if asked is None else asked


@contextmanager
def force(name: str | None = None, **by_operator: str) -> Iterator[None]:
    """Inside, in this thread, all operators run by this implementation if they can, and those named by theirs or not.

    It goes before an outer one and before the environment. A name for all operators ends what was forced of single
    ones.

        with dispatch.force("triton", scaled_mm="torch"): ...

    Raises:
        KernelUnavailableError: an operator or an implementation of these names does not exist.
    """
    wanted = {**(forced() if name is None else {_EVERY: name}), **by_operator}
    _check(wanted)
    token = _asked.set(wanted)
    try:
        yield
    finally:
        _asked.reset(token)


def _check(wanted: Mapping[str, str]) -> None:
    for operator, name in wanted.items():
        if operator == _EVERY:
            known = {each.name for every in _implementations.values() for each in every}
            _check_known(name, known, "no operator has an implementation")
        else:
            _check_known(operator, _implementations, "there is no operator")
            known = {each.name for each in _implementations[operator]}
            _check_known(name, known, f"{operator} has no implementation")


def _check_known(word: str, known: Iterable[str], complaint: str) -> None:
    known = sorted(known)
    if word not in known:
        raise KernelUnavailableError(unknown(complaint, word, known))


def unknown(complaint: str, word: str, known: Iterable[str]) -> str:
    """The complaint about a word, with the nearest of those that are known."""
    known = list(known)
    near = difflib.get_close_matches(word, known, n=1)
    meant = f"; did you mean {near[0]!r}?" if near else ""
    return f"{complaint} {word!r}{meant} (known: {', '.join(known)})"


def force_as_environment_says() -> None:
    """Read POLICYQUANT_KERNELS; called once, when all operators are registered.

    Raises:
        KernelUnavailableError: it names an operator or an implementation that does not exist, or one operator twice.
    """
    wanted: dict[str, str] = {}
    try:
        for entry in os.environ.get(VARIABLE, "").split(","):
            operator, equals, name = map(str.strip, entry.partition("="))
            if not operator and not equals:
                continue
            if not equals:
                operator, name = _EVERY, operator
            if operator in wanted:
                whose = "all operators" if operator == _EVERY else operator
                raise KernelUnavailableError(f"{whose}: both {wanted[operator]!r} and {name!r}")
            wanted[operator] = name
        _check(wanted)
    except KernelUnavailableError as error:
        raise KernelUnavailableError(f"environment variable {VARIABLE}: {error}") from None
    _by_environment.update(wanted)
