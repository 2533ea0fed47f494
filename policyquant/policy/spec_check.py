"""Whether the description of a method that others bring is one that deciding, counting and loading understand."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Final

from policyquant.errors import PolicyQuantError, did_you_mean
from policyquant.policy.scheme import BITS, INPUT_GRANULARITIES, WEIGHT_GRANULARITIES, Quantization

if TYPE_CHECKING:
    from policyquant.policy.methods import Choices, MethodSpec

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_SCHEMES: Final = ("dynamic", "static")


def check_spec(spec: MethodSpec, kinds: Collection[str]) -> None:
    """
    Args:
        spec: As the class of a method has it.
        kinds: Kinds of layer that a method can take.

    Raises:
        PolicyQuantError: a name, a kind, a dtype or a granularity is none that policies know, or fields contradict each
            other; all of it is in the message.
    """
    problems = [*_problems(spec, kinds)]
    if problems:
        raise PolicyQuantError(f"method {spec.name!r} is described by what is not understood: {'; '.join(problems)}")


def _problems(spec: MethodSpec, kinds: Collection[str]) -> Iterator[str]:
    name: Any = spec.name  # Whoever writes a spec may not check types.
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        near = re.sub(r"[^a-z0-9]+", "_", str(name).lower()).strip("_")
        yield "its name is to be of lower-case letters, digits and _" + (
            f", as {near!r}" if _NAME.fullmatch(near) else ""
        )
    taken: Any = spec.kinds
    if not isinstance(taken, (frozenset, set)) or not taken:
        yield f"kinds is to be a set of some of {', '.join(kinds)}; found {taken!r}"
    else:
        for kind in sorted(map(str, taken)):
            yield from _among(f"kind {kind!r}", kind, kinds)
    yield from _side("weight", spec.weight, spec.weight_choices, WEIGHT_GRANULARITIES)
    yield from _side("input", spec.input, spec.input_choices, INPUT_GRANULARITIES)


def _side(side: str, base: Any, choices: Choices, granularities: Collection[str]) -> Iterator[str]:
    if base is not None and not isinstance(base, Quantization):
        yield f"{side} is to be a Quantization or None; found {type(base).__name__}"
        return
    if base is None:
        if choices != type(choices)():
            yield f"{side}_choices says what may be set, but there is no {side}"
        return
    for field, known in (("dtype", BITS), ("granularity", granularities), ("scale_dtype", BITS)):
        for value in dict.fromkeys((getattr(base, field), *getattr(choices, field))):
            yield from _among(f"{side} {field} {value!r}", value, known)
    if base.global_scale_dtype is not None:
        yield from _among(f"{side} global_scale_dtype {base.global_scale_dtype!r}", base.global_scale_dtype, BITS)
    for scheme in (base.scheme, *choices.scheme):
        if side == "weight":
            if scheme is not None:
                yield f"weight scheme {scheme!r} is of no weight: its scales are computed once"
        else:
            yield from _among(f"input scheme {scheme!r}", scheme, _SCHEMES)
    for field in ("group", "block"):
        yield from _sizes(side, field, base, choices)


def _sizes(side: str, field: str, base: Quantization, choices: Choices) -> Iterator[str]:
    """Groups and blocks: whole numbers, there if the granularity needs one and not otherwise."""
    own, offered = getattr(base, field), getattr(choices, field)
    for value in dict.fromkeys((*([] if own is None else [own]), *offered)):
        numbers = value if field == "block" and isinstance(value, tuple) and len(value) == 2 else (value,)
        if len(numbers) != (2 if field == "block" else 1) or not all(isinstance(n, int) and n > 0 for n in numbers):
            expected = "two whole numbers above 0, (out, in)" if field == "block" else "a whole number above 0"
            yield f"{side} {field} is to be {expected}; found {value!r}"
    if (base.granularity == field) != (own is not None):
        yield f"{side} granularity {base.granularity!r} with {field} {own!r}"
    elif own is None and field in choices.granularity and not offered:
        yield f"{side} granularity {field!r} may be chosen, but {side}_choices has no {field}"


def _among(what: str, value: object, known: Collection[str]) -> Iterator[str]:
    if value not in known:
        yield f"{what} is none of {', '.join(known)}{did_you_mean(str(value), known)}"
