"""Values of a JSON document that somebody else may have written, read strictly: each with its place in every error."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from policyquant.errors import SourceError, did_you_mean
from policyquant.policy.scheme import LARGEST_SCALE, SMALLEST_SCALE

Choice = TypeVar("Choice", bound=str)

_MOST_SHOWN: Final = 60
"""Characters of a value that is quoted in an error."""

_LARGEST: Final = 2**63 - 1
"""Of a size: what file systems count with."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value stands: `plan.json:17: layers[3].shape`."""

    file: str
    path: str = ""

    def key(self, name: str) -> Place:
        """The place of one of an object's values."""
        return Place(self.file, f"{self.path}.{name}" if self.path else name)

    def item(self, index: int) -> Place:
        """The place of one of a list's items."""
        return Place(self.file, f"{self.path}[{index}]")

    def error(self, message: str) -> SourceError:
        """An error that begins with this place."""
        return SourceError(f"{self.file}: {self.path}: {message}" if self.path else f"{self.file}: {message}")

    def unexpected(self, expected: str, found: object, hint: str = "") -> SourceError:
        """An error that says what was expected and what was found."""
        return self.error(f"expected {expected}, found {shown(found)}{hint}")


def shown(value: object) -> str:
    """A value as JSON text, short enough for a message."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 1]}…"


def fields(value: object, place: Place, required: Sequence[str], optional: Sequence[str] = ()) -> Mapping[str, Any]:
    """An object that has all required keys and none but these and the optional ones."""
    if not isinstance(value, dict):
        raise place.unexpected("an object", value)
    if len(value) != len(required) or not all(key in value for key in required):
        known = (*required, *optional)
        for key in value:
            if key not in known:
                raise place.error(f"unknown key {shown(key)}{did_you_mean(key, known)}")
        for key in required:
            if key not in value:
                raise place.error(f"the key {key!r} is missing")
    return value


def items(value: object, place: Place) -> list[Any]:
    """A list."""
    if not isinstance(value, list):
        raise place.unexpected("a list", value)
    return value


def text(value: object, place: Place) -> str:
    """A string."""
    if not isinstance(value, str):
        raise place.unexpected("a string", value)
    return value


def text_or_null(value: object, place: Place) -> str | None:
    """A string or null."""
    if value is not None and not isinstance(value, str):
        raise place.unexpected("a string or null", value)
    return value


def texts(value: object, place: Place) -> tuple[str, ...]:
    """A list of strings."""
    return tuple(text(each, place.item(index)) for index, each in enumerate(items(value, place)))


def choice(value: object, place: Place, known: Collection[Choice], what: str) -> Choice:
    """One of some known words."""
    for word in known:
        if value == word and isinstance(value, str):
            return word
    hint = did_you_mean(value, known) if isinstance(value, str) else ""
    raise place.unexpected(what, value, hint or f" (known: {', '.join(known)})")


def size(value: object, place: Place) -> int:
    """A whole number from 0 to 2⁶³ - 1."""
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise place.unexpected("a whole number that is not negative and below 2**63", value)
    return value


def size_or_null(value: object, place: Place) -> int | None:
    """Such a number, or null."""
    return None if value is None else size(value, place)


def scale(value: object, place: Place) -> float:
    """A scale that a policy gave: a number that float32 holds, above 0."""
    if type(value) not in (int, float) or not isinstance(value, (int, float)):
        raise place.unexpected("a number", value)
    if not 0 < value < math.inf:
        raise place.unexpected("a finite number above 0", value)
    if not SMALLEST_SCALE <= value <= LARGEST_SCALE:
        expected = f"a scale that float32 can hold, from {SMALLEST_SCALE:.6g} to {LARGEST_SCALE:.6g}"
        raise place.unexpected(expected, value)
    return value


def truth(value: object, place: Place) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise place.unexpected("true or false", value)
    return value


def shape(value: object, place: Place) -> tuple[int, ...]:
    """A list of sizes."""
    return tuple(size(each, place.item(index)) for index, each in enumerate(items(value, place)))


def shape_or_null(value: object, place: Place) -> tuple[int, ...] | None:
    """A list of sizes, or null."""
    return None if value is None else shape(value, place)
