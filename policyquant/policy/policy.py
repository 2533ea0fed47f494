"""A policy after reading: validated, with everything it extends merged in, and each rule's place remembered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from policyquant.errors import Location
from policyquant.inventory.kinds import Kind
from policyquant.policy.patterns import Pattern
from policyquant.policy.scheme import spelled

PROTECTED: Final[frozenset[Kind]] = frozenset({"head", "embedding", "router"})
"""The kinds that are protected unless a policy says otherwise."""


class Fields(Mapping[str, object]):
    """Written fields of a `Quantization`, normalised: dtype in PyTorch's spelling, block as a tuple, and whatever they
    imply about granularity written out. Immutable."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = dict(values)

    def __getitem__(self, name: str) -> object:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __repr__(self) -> str:
        return f"Fields({self._values!r})"

    def __str__(self) -> str:
        return f"{{{', '.join(f'{name}: {spelled(value)}' for name, value in self._values.items())}}}"


@dataclass(frozen=True, slots=True)
class SchemeFields:
    """The scheme part of a rule, a default or an expectation, as written: None is "not said"."""

    method: str | None = None
    weight: Fields | None = None
    input: Fields | None = None
    output: str | Fields | None = None
    """A plain dtype's name; fields of a quantization (a short `output: fp8` gives the dtype alone, the consumers give
    the rest); the word `none` takes an earlier output back."""
    kv_cache: str | Fields | None = None
    """Fields of a quantization, or `none`."""

    def __bool__(self) -> bool:
        return any(value is not None for value in (self.method, self.weight, self.input, self.output, self.kv_cache))

    def __str__(self) -> str:
        """In one line, as it could be written."""
        pieces = [] if self.method is None else [self.method]
        for name in ("weight", "input", "output", "kv_cache"):
            value = getattr(self, name)
            if value is not None:
                pieces.append(f"{name}: {value}")
        return ", ".join(pieces)


Origin = Literal["own", "extended", "preset"]
"""Who wrote a rule: the policy that was loaded, a file it extends, or a preset."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. It reaches a layer if one of `patterns` does (or it has none) and `kinds` has its kind (or is None)."""

    patterns: tuple[Pattern, ...]
    kinds: frozenset[Kind] | None
    fields: SchemeFields
    location: Location
    origin: Origin = "own"
    optional: bool = False

    @property
    def text(self) -> str:
        """The rule's condition as a person would write it in one line."""
        pieces = [", ".join(pattern.text for pattern in self.patterns)] if self.patterns else []
        if self.kinds is not None:
            pieces.append("kind: " + ", ".join(sorted(self.kinds)))
        return "; ".join(pieces)


@dataclass(frozen=True, slots=True)
class Default:
    """What holds for a layer that no rule with a method reaches."""

    fields: SchemeFields
    location: Location


@dataclass(frozen=True, slots=True)
class LayerExpectation:
    """Every layer that `pattern` reaches and the method can take must have `fields`."""

    pattern: Pattern
    fields: SchemeFields
    location: Location
    optional: bool = False


@dataclass(frozen=True, slots=True)
class BitsExpectation:
    """Stored bits per parameter, compared with `limit`."""

    comparison: Literal["<=", "<", ">=", ">", "=="]
    limit: float
    location: Location


@dataclass(frozen=True, slots=True, repr=False)
class Policy:
    """Ordered rules and what stands around them. Immutable."""

    rules: tuple[Rule, ...]
    default: Default | None
    protect: frozenset[Kind]
    protect_location: Location | None
    """Where the policy itself sets `protect`; None if the built-in list holds."""
    groups: tuple[tuple[Pattern, ...], ...]
    groups_locations: tuple[Location, ...]
    expected_layers: tuple[LayerExpectation, ...]
    expected_bits: tuple[BitsExpectation, ...]
    untie: bool
    source: str
    """What was loaded, as a person would write it."""
    sha256: str
    """Of the policy's text and of all it extends, in the order in which they are read."""
    files: tuple[str, ...] = ()
    """All that was read, presets by name."""

    def __repr__(self) -> str:
        rules = f"{len(self.rules)} rule{'' if len(self.rules) == 1 else 's'}"
        return f"<Policy {self.source}: {rules}, sha256 {self.sha256[:12]}>"
