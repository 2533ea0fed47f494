"""The quantization methods as data: names, defaults, what may be refined, where they apply, what shapes they take.

The code that runs a method is elsewhere; resolution needs no more than this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Final

from policyquant.errors import PolicyQuantError
from policyquant.inventory.kinds import KINDS, Kind
from policyquant.policy.scheme import Quantization, spelled
from policyquant.policy.spec_check import check_spec

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_WEIGHTS: Final[frozenset[Kind]] = frozenset({"linear", "moe", "head", "router"})
_ALL_WEIGHTS: Final[tuple[Kind, ...]] = ("linear", "moe", "head", "router", "embedding")
WEIGHT_KINDS: Final = frozenset(_ALL_WEIGHTS)
"""Kinds that some method other than `none` takes."""


@dataclass(frozen=True, slots=True)
class Choices:
    """What a policy may write for one tensor of a method. Fields that are not named here cannot be refined."""

    granularity: tuple[str, ...] = ()
    group: tuple[int, ...] = ()
    block: tuple[tuple[int, int], ...] = ()
    dtype: tuple[str, ...] = ()
    scheme: tuple[str, ...] = ()
    symmetric: tuple[bool, ...] = ()
    scale_dtype: tuple[str, ...] = ()
    scale: bool = False
    scale_ub: bool = False

    def fields(self) -> list[str]:
        """The fields that leave a choice, in the order in which they are documented."""
        names = [name for name in _CHOICE_FIELDS if len(getattr(self, name)) > 1]
        return [*names, *(name for name in ("scale", "scale_ub") if getattr(self, name))]

    def values(self, name: str) -> tuple[object, ...]:
        """The values of a field that a policy chooses among; empty if it may not set it, or may set it to any."""
        found = getattr(self, name, ())
        return found if isinstance(found, tuple) else ()

    def allow(self, base: Quantization, name: str, value: object) -> bool:
        """Whether a policy may write this value on top of `base`. What holds anyway may always be written out."""
        return getattr(base, name) == value or getattr(self, name, False) is True or value in self.values(name)


_CHOICE_FIELDS: Final = ("dtype", "granularity", "group", "block", "scheme", "symmetric", "scale_dtype")

_FP8: Final = ("float8_e4m3fn", "float8_e5m2")
_GROUPS: Final = (32, 64, 128)


@dataclass(frozen=True, slots=True)
class MethodSpec:
    """One method as a policy sees it."""

    name: str
    summary: str
    use: str
    """When to choose it."""
    kinds: frozenset[Kind]
    weight: Quantization | None = None
    input: Quantization | None = None
    weight_choices: Choices = Choices()
    input_choices: Choices = Choices()
    shapes: str = "any"
    """Shape constraint, for people."""
    ragged: bool = True
    """Whether a last group or block may be smaller than the rest; if not, a shape that leaves one is an error."""

    def refine(
        self,
        weight: Quantization | None,
        input: Quantization | None,
        weight_fields: Mapping[str, object] | None,
        input_fields: Mapping[str, object] | None,
    ) -> tuple[Quantization | None, Quantization | None]:
        """Apply written fields (`policy.Fields`) on top of what stands.

        Raises:
            FieldError: this method does not take a field or its value.
        """
        if weight_fields is not None:
            weight = self._apply("weight", weight, self.weight_choices, weight_fields)
        if input_fields is not None:
            input = self._apply("input", input, self.input_choices, input_fields)
        return weight, input

    def _apply(
        self, side: str, base: Quantization | None, choices: Choices, fields: Mapping[str, object]
    ) -> Quantization:
        if base is None:
            raise FieldError(side, None, f"method {self.name!r} does not quantize the {side}")
        changes = dict(fields)
        for name, value in changes.items():
            self._check(side, base, choices, name, value)
        _complete(changes, base, choices)
        result = replace(base, **changes)  # type: ignore[arg-type]  # field names and types were checked above
        _check_together(side, result)
        return result

    def _check(self, side: str, base: Quantization, choices: Choices, name: str, value: object) -> None:
        """Refuse a field that this method does not take, or a value of it."""
        if choices.allow(base, name, value):
            return
        allowed = choices.values(name)
        if not allowed:
            have = ", ".join(choices.fields()) or "nothing"
            stands = getattr(base, name)
            holds = f"takes no {side} {name}" if stands is None else f"has {side} {name} {spelled(stands)}"
            raise FieldError(side, name, f"method {self.name!r} {holds}; a policy may set: {have}")
        expected = ", ".join(map(spelled, allowed))
        raise FieldError(side, name, f"method {self.name!r} takes {side} {name} {expected}, not {spelled(value)}")


def _complete(changes: dict[str, object], base: Quantization, choices: Choices) -> None:
    """A change of granularity brings the group or block that it needs, and drops the one that it does not."""
    granularity = changes.get("granularity", base.granularity)
    if granularity != "group":
        changes.setdefault("group", None)
    elif "group" not in changes and base.group is None:
        changes["group"] = 128 if 128 in choices.group else choices.group[0]
    if granularity != "block":
        changes.setdefault("block", None)
    elif "block" not in changes and base.block is None:
        changes["block"] = choices.block[0]


def _check_together(side: str, result: Quantization) -> None:
    """Refuse fields that contradict each other."""
    for field in ("group", "block"):
        if getattr(result, field) is not None and result.granularity != field:
            raise FieldError(side, field, f"{side} {field} contradicts granularity {result.granularity!r}")
    if result.scheme == "static" and result.granularity == "token":
        raise FieldError(side, "granularity", f"a static {side} scale is per tensor, not per token")
    if result.scale is not None and result.scheme != "static":
        raise FieldError(side, "scale", f"{side} scale needs scheme: static")
    if result.scale_ub is not None and result.scheme != "dynamic":
        raise FieldError(side, "scale_ub", f"{side} scale_ub needs scheme: dynamic")


class FieldError(Exception):
    """A method does not take what was written. `side` is `weight` or `input`; `field` None means the side itself."""

    def __init__(self, side: str, field: str | None, message: str) -> None:
        super().__init__(message)
        self.side = side
        self.field = field


ENTRY_POINTS: Final = "policyquant.methods"
"""Group of entry points by which other packages bring methods: name of the method → its class, which has a `spec`."""


@cache
def entry_points() -> Mapping[str, EntryPoint]:
    """The methods that installed packages bring, by name; none is loaded."""
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


class MethodTable(Mapping[str, MethodSpec]):
    """Methods by name: ours, which are listed, and behind them those that others bring, which can be looked up.

    Others register theirs in this process, or install a package that has an entry point. Packages are looked at only
    for a name that is not known otherwise, so that the others cost nothing; `names` looks at them all.
    """

    def __init__(self, *specs: MethodSpec) -> None:
        self._own = {spec.name: spec for spec in specs}
        self._brought: dict[str, MethodSpec] = {}

    def __getitem__(self, name: str) -> MethodSpec:
        """The method of this name.

        Raises:
            KeyError: there is none.
            PolicyQuantError: a package says that it has the method, but what it has is none.
        """
        own = self._own.get(name)
        if own is not None:
            return own
        if name not in self._brought:
            self._brought[name] = _load(entry_points()[name])
        return self._brought[name]

    def add(self, spec: MethodSpec) -> None:
        """Make known what `policyquant.methods.registry.register` registers.

        Raises:
            PolicyQuantError: we describe a method of that name otherwise, or its spec is not understood.
        """
        own = self._own.get(spec.name)
        if own is None:
            check_spec(spec, _ALL_WEIGHTS)
            self._brought[spec.name] = spec
        elif own != spec:
            raise PolicyQuantError(
                f"method {spec.name!r} is described by policyquant, and otherwise than by the class that is registered;"
                f" take what is there, `spec = METHODS[{spec.name!r}]`, or another name"
            )

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in self._brought or name in entry_points()

    def __iter__(self) -> Iterator[str]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)

    def names(self) -> tuple[str, ...]:
        """All names that are known here: ours as they are listed, then those that others bring. Loads none of them."""
        return (*self._own, *sorted({*self._brought, *entry_points()} - {*self._own}))

    def brought(self) -> Iterator[MethodSpec]:
        """The methods that others bring, loaded one by one; those that cannot be loaded are left out."""
        for name in self.names()[len(self._own) :]:
            with suppress(PolicyQuantError):  # Whoever asks for that one is told.
                yield self[name]


def _load(point: EntryPoint) -> MethodSpec:
    try:
        spec = point.load().spec
    except Exception as error:  # Anything may go wrong in code of others; the user needs to know whose it is.
        raise PolicyQuantError(f"method {point.name!r} of {point.value} cannot be loaded: {error}") from error
    if not isinstance(spec, MethodSpec) or spec.name != point.name:
        raise PolicyQuantError(f"method {point.name!r}: {point.value} has no spec of that name")
    check_spec(spec, _ALL_WEIGHTS)
    return spec


METHODS: Final = MethodTable(
    MethodSpec(
        "none",
        "Leave the layer exactly as it is stored.",
        "For layers that must keep their precision: routers, heads, the first and last blocks.",
        frozenset(KINDS),
    ),
    MethodSpec(
        "fp8",
        "FP8 weights, one scale per output channel; FP8 activations, quantized per token as they come.",
        "The usual W8A8 on GPUs with FP8 tensor cores (compute capability 8.9 and up).",
        _WEIGHTS,
        Quantization("float8_e4m3fn", "channel"),
        Quantization("float8_e4m3fn", "token", scheme="dynamic"),
        Choices(granularity=("channel", "tensor"), dtype=_FP8),
        Choices(granularity=("token", "tensor"), dtype=_FP8, scheme=("dynamic", "static"), scale=True, scale_ub=True),
    ),
    MethodSpec(
        "fp8_block",
        "FP8 weights, one scale per 128x128 block; FP8 activations in groups of 128.",
        "DeepSeek-V3's format: tighter than per channel, and native on Hopper through DeepGEMM.",
        _WEIGHTS,
        Quantization("float8_e4m3fn", "block", block=(128, 128)),
        Quantization("float8_e4m3fn", "group", group=128, scheme="dynamic"),
        Choices(block=((128, 128),), granularity=("block",), scale_dtype=("float32", "float8_e8m0fnu")),
        Choices(
            group=(128, 64, 32), granularity=("group",), scheme=("dynamic",), scale_dtype=("float32", "float8_e8m0fnu")
        ),
        shapes="any; a ragged last block has its own scale",
    ),
    MethodSpec(
        "fp8_weight_only",
        "FP8 weights, one scale per output channel; activations stay as they are.",
        "Half the memory without touching activations; where FP8 tensor cores are missing, or batches are small.",
        WEIGHT_KINDS,
        Quantization("float8_e4m3fn", "channel"),
        None,
        Choices(granularity=("channel", "tensor"), dtype=_FP8),
    ),
    MethodSpec(
        "int8",
        "INT8 weights, one scale per output channel; INT8 activations, quantized per token as they come.",
        "W8A8 on GPUs and CPUs without FP8 (Ampere, AVX-512 VNNI).",
        _WEIGHTS,
        Quantization("int8", "channel"),
        Quantization("int8", "token", scheme="dynamic"),
        Choices(granularity=("channel", "tensor")),
        Choices(granularity=("token", "tensor"), scheme=("dynamic", "static"), scale=True),
    ),
    MethodSpec(
        "int8_weight_only",
        "INT8 weights, one scale per output channel; activations stay as they are.",
        "Half the memory on any hardware with almost no loss.",
        WEIGHT_KINDS,
        Quantization("int8", "channel"),
        None,
        Choices(granularity=("channel", "tensor")),
    ),
    MethodSpec(
        "int4_weight_only",
        "INT4 weights in groups of 128 along the input, packed two to a byte; activations stay as they are.",
        "A quarter of the memory, for decoding in small batches.",
        WEIGHT_KINDS,
        Quantization("int4", "group", group=128, scale_dtype="bfloat16"),
        None,
        Choices(granularity=("group",), group=_GROUPS, symmetric=(True, False)),
        shapes="input dimension a multiple of the group",
        ragged=False,
    ),
    MethodSpec(
        "mxfp8",
        "OCP MXFP8: FP8 weights and activations in groups of 32 with power-of-two scales.",
        "Blackwell's native 8-bit format.",
        _WEIGHTS,
        Quantization("float8_e4m3fn", "group", group=32, scale_dtype="float8_e8m0fnu"),
        Quantization("float8_e4m3fn", "group", group=32, scheme="dynamic", scale_dtype="float8_e8m0fnu"),
        shapes="input dimension a multiple of 32",
        ragged=False,
    ),
    MethodSpec(
        "mxfp4",
        "OCP MXFP4: FP4 weights in groups of 32 with power-of-two scales; activations stay as they are.",
        "gpt-oss's format for experts; 4.25 bits per weight.",
        _WEIGHTS,
        Quantization("float4_e2m1fn", "group", group=32, scale_dtype="float8_e8m0fnu"),
        None,
        shapes="input dimension a multiple of 32",
        ragged=False,
    ),
    MethodSpec(
        "nvfp4",
        "NVFP4: FP4 weights and activations in groups of 16 with FP8 scales and one FP32 scale per tensor.",
        "Blackwell's native 4-bit format; 4.5 bits per weight.",
        _WEIGHTS,
        Quantization("float4_e2m1fn", "group", group=16, scale_dtype="float8_e4m3fn", global_scale_dtype="float32"),
        Quantization(
            "float4_e2m1fn",
            "group",
            group=16,
            scheme="dynamic",
            scale_dtype="float8_e4m3fn",
            global_scale_dtype="float32",
        ),
        shapes="input dimension a multiple of 16",
        ragged=False,
    ),
    MethodSpec(
        "dequantize",
        "Turn a layer that is stored quantized into the model's dtype.",
        "To restore precision where a checkpoint was quantized too far, or for hardware without its format.",
        WEIGHT_KINDS,
    ),
)
"""Every method by name, in the order in which they are listed."""
