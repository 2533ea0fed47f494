"""Measuring tile configurations on the GPU at hand, and keeping those that are faster than the present ones."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from policyquant.kernels.calls import Call, UnknownWordError, described
from policyquant.kernels.dispatch import operators, unknown
from policyquant.kernels.machine import Machine, machine
from policyquant.kernels.triton.launch import Target, recording, target_of
from policyquant.kernels.tuning import answering, configuration, families, forget, measured, shape_classes
from policyquant.kernels.tuning.candidates import SPACES, candidates
from policyquant.kernels.tuning.clock import seconds_of, sets_needed
from policyquant.kernels.tuning.measured import Gpu
from policyquant.kernels.tuning.problems import implementation, problems
from policyquant.kernels.tuning.search import Failure, Found, search

EXACT: Final = ("quantize", "group_quantize", "int8_quantize", "int4_quantize", "activation", "kv_cache")
"""Families whose results do not depend on the order of sums."""
_MOST_DIFFERENT: Final = 2.5e-3
"""Of other results: the norm of the difference over that of the result, as the check of accumulation has it."""

Clock = Callable[[Callable[[Any], object], Sequence[Any], str], float]
"""(a call, sets of its inputs, device) → seconds of one."""


class TuningError(RuntimeError):
    """Nothing can be measured here, or the GPU has stopped working."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What was found for one class of shapes."""

    family: str
    shape_class: str
    calls: Sequence[str]
    found: Found | None
    refused: str | None = None
    """Why it was not measured."""


def shape_classes_of(text: str, target: Target) -> list[tuple[str, str]]:
    """The families and classes of shapes of which a call asks for configurations.

    Raises:
        UnknownWordError: a word of it says nothing.
    """
    asked: list[tuple[str, str]] = []

    def note(family: str, shape_class: str) -> None:
        asked.append((family, shape_class))

    made = described(text)
    with answering(note), recording(target):
        inputs, outs = made.placed()
        _function(made.operator, "triton")(*inputs, **outs)
    return list(dict.fromkeys(asked))


def tune(
    names: Sequence[str] = (),
    calls: Sequence[str] = (),
    *,
    gpu: Gpu | None = None,
    seconds: float | None = None,
    clock: Clock = seconds_of,
    tell: Callable[[Measured], object] = lambda _: None,
) -> list[Measured]:
    """Measure candidates for classes of shapes, and add those that are faster to the table of the user's cache.

    Args:
        names: families; none: all.
        calls: what to measure in place of the calls in `problems`: only their classes are tuned then.
        gpu: the one to measure on; None: the one in use.
        seconds: for all of it; None: as long as it takes. What there is no time for is said.
        clock: measures a call.
        tell: is called after each class.

    Raises:
        TuningError: there is no GPU, or it has stopped working; what was found before is kept.
        UnknownWordError: there is no such family, or a call says nothing.
        OSError: the table cannot be written.
    """
    gpu = measured.gpu_at_hand() if gpu is None else gpu
    if gpu is None:
        raise TuningError("there is no GPU to measure on, or Triton is not installed")
    tiny = gpu.name == measured.INTERPRETER
    device = "cpu" if tiny else "cuda"
    work = _work(names, calls, target_of(torch.empty(0, device=device)), tiny)
    end = None if seconds is None else time.monotonic() + seconds
    made = []
    for number, (family, shape_class, texts) in enumerate(work):
        # Each class has its part of the time that is left.
        left = math.inf if end is None else end - time.monotonic()
        if left > 0:
            part = time.monotonic() + left / (len(work) - number)
            made.append(_measured(family, shape_class, texts, gpu, part, clock))
            _keep(gpu, made[-1])
        else:
            made.append(Measured(family, shape_class, texts, None, "no time was left"))
        tell(made[-1])
    return made


def _work(names: Sequence[str], calls: Sequence[str], target: Target, tiny: bool) -> list[tuple[str, str, list[str]]]:
    """Families, their classes of shapes, and the calls of each."""
    known = [each for each in families() if each in SPACES]
    for name in names:
        if name not in known:
            raise UnknownWordError(unknown("there is no family", name, known))
    own: dict[tuple[str, str], list[str]] = {}
    for text in calls:
        for each in shape_classes_of(text, target):
            own.setdefault(each, []).append(text)
    if calls:
        return [(*each, texts) for each, texts in own.items() if not names or each[0] in names]
    return [
        (family, shape_class, problems(family, shape_class, tiny=tiny))
        for family in dict.fromkeys(names) or known
        for shape_class in shape_classes(family, target.capability)
    ]


def _keep(gpu: Gpu, made: Measured) -> None:
    if made.found is None or made.found.before is None:
        return
    entries = {}
    if made.found.best is not None:
        entries[made.shape_class] = {
            "configuration": dict(made.found.best),
            "seconds": made.found.seconds,
            "before": made.found.before,
        }
    measured.add(gpu, made.family, entries)
    forget()


def _measured(family: str, shape_class: str, texts: Sequence[str], gpu: Gpu, end: float, clock: Clock) -> Measured:
    device = "cpu" if gpu.name == measured.INTERPRETER else "cuda"
    name = implementation(shape_class)
    refused = "no call stands for it" if not texts else _refused(texts, name, machine(device))
    if refused is not None:
        return Measured(family, shape_class, texts, None, refused)
    present = configuration(family, gpu.capability, shape_class)
    try:
        cases = [_Case(text, name, device, family in EXACT) for text in texts]
        found = search(
            present,
            candidates(family, shape_class, present, gpu.capability),
            _measure(family, shape_class, cases, clock),
            lambda: time.monotonic() < end,
        )
    except torch.OutOfMemoryError:
        return Measured(family, shape_class, texts, None, "the GPU's memory does not hold its inputs")
    return Measured(family, shape_class, texts, found)


def _refused(texts: Sequence[str], name: str, on: Machine) -> str | None:
    """Why the implementation does not run these calls here."""
    for text in texts:
        made = described(text)
        for each in operators()[made.operator]:
            if each.name == name and (reason := each.why_not(on)) is not None:
                return reason
    return None


def _function(operator: str, name: str) -> Callable[..., None]:
    return next(each for each in operators()[operator] if each.name == name).load()


class _Case:
    """A call with inputs, and the result of the present configuration."""

    def __init__(self, text: str, name: str, device: str, exact: bool) -> None:
        made = described(text, device)
        self.function = _function(made.operator, name)
        self.device = device
        self.exact = exact
        self.sets = [made.placed()]
        if device == "cuda":
            inputs = [each for each in self.sets[0][0] if isinstance(each, torch.Tensor)]
            needed = sets_needed(
                sum(each.numel() * each.element_size() for each in inputs),
                torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size,
            )
            self.sets += [described(text, device).placed() for _ in range(needed - 1)]
        self.written = _written(made, self.sets[0])
        self.expected: list[torch.Tensor] | None = None

    def __call__(self, given: Any) -> None:
        inputs, outs = given
        self.function(*inputs, **outs)

    def is_right(self) -> bool:
        """Whether the result is that of the configuration that was asked first."""
        for each in self.written:
            each.fill_(3)
        self(self.sets[0])
        if self.device == "cuda":
            torch.cuda.synchronize()
        if self.expected is None:
            self.expected = [each.clone() for each in self.written]
            return True
        return all(agree(*pair, exact=self.exact) for pair in zip(self.written, self.expected, strict=True))


def _written(made: Call, given: tuple[tuple[Any, ...], Mapping[str, torch.Tensor]]) -> list[torch.Tensor]:
    """The results of a call, or those of its arguments that it writes into."""
    inputs, outs = given
    if outs:
        return list(outs.values())
    arguments = getattr(torch.ops.policyquant, made.operator).default._schema.arguments
    return [
        value
        for argument, value in zip(arguments, inputs, strict=True)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]


def agree(found: torch.Tensor, expected: torch.Tensor, *, exact: bool) -> bool:
    """Whether results are equal bit for bit, or else as near as sums in another order and one rounding leave them.

    Every 16 rows are judged by themselves, so that one wrong tile among many is seen.
    """
    if exact or not expected.dtype.is_floating_point:
        return torch.equal(*(each.contiguous().view(torch.uint8) for each in (found, expected)))
    if not bool(found.float().isfinite().all()):
        return False
    difference, size = (_norms(each) for each in (found.float() - expected.float(), expected.float()))
    return bool((difference <= _MOST_DIFFERENT * size + torch.finfo(torch.float32).tiny).all())


def _norms(x: torch.Tensor) -> torch.Tensor:
    """Of each 16 rows."""
    rows = x.reshape(-1, x.shape[-1]) if x.ndim else x.reshape(1, 1)
    squares = rows.square().sum(1)
    return torch.nn.functional.pad(squares, (0, -squares.shape[0] % 16)).view(-1, 16).sum(1).sqrt()


def _measure(
    family: str, shape_class: str, cases: Sequence[_Case], clock: Clock
) -> Callable[[Mapping[str, Any]], float | Failure]:
    """The geometric mean of the calls' seconds, if their results are right."""

    def measure(tile: Mapping[str, Any]) -> float | Failure:
        with answering(lambda *asked: tile if asked == (family, shape_class) else None):
            try:
                if not all(case.is_right() for case in cases):
                    return Failure("it gives another result")
                times = [clock(case, case.sets, case.device) for case in cases]
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # Whatever the compiler and the driver raise.
                _check_alive(f"{family}, {shape_class}: {dict(tile)}", error)
                return Failure(type(error).__name__)
        return math.exp(sum(map(math.log, times)) / len(times))

    return measure


def _check_alive(what: str, error: Exception) -> None:
    """After some errors nothing runs in this process any more.

    Raises:
        TuningError: this was one of them.
    """
    if not torch.cuda.is_available():
        return
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        raise TuningError(f"the GPU has stopped working at {what}: {error}") from error
