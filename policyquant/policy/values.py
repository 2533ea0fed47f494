"""One value of a policy → a checked Python value, or a problem in people's words.

Every reader takes the node, the name of the field (for the message) and where to put problems, and returns None after
it has noted one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

from policyquant.errors import did_you_mean
from policyquant.policy.document import Node, ScalarNode, SequenceNode, describe, show
from policyquant.policy.problems import Problems
from policyquant.policy.scheme import LARGEST_SCALE, SMALLEST_SCALE

Reader = Callable[[Node, str, Problems], "object | None"]

WRITE_NONE: Final = "; write `none` to say that nothing is to be quantized"


def wrong(node: Node, name: str, expected: str, problems: Problems, advice: str = "") -> None:
    """Note that a value has the wrong type."""
    problems.add(node.location, f"`{name}`: expected {expected}, found {describe(node)}{advice}")


def text(node: Node, name: str, problems: Problems) -> str | None:
    """Text; a number or a truth value is none, because quotes decide which of them was meant."""
    if isinstance(node, ScalarNode) and isinstance(node.value, str):
        return node.value
    advice = "; put it in quotes if it is text" if isinstance(node, ScalarNode) and node.written else ""
    wrong(node, name, "text", problems, advice)
    return None


def truth(node: Node, name: str, problems: Problems) -> bool | None:
    """True or false."""
    if isinstance(node, ScalarNode) and isinstance(node.value, bool):
        return node.value
    wrong(node, name, "true or false", problems)
    return None


def whole_number(node: Node, name: str, problems: Problems) -> int | None:
    """A whole number from 1 up; `128.0` and `1e2` are whole."""
    value = node.value if isinstance(node, ScalarNode) else None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    wrong(node, name, "a whole number from 1 up", problems)
    return None


def scale(node: Node, name: str, problems: Problems) -> float | None:
    """A scale that the policy gives: a number that float32 holds, above 0."""
    value = node.value if isinstance(node, ScalarNode) else None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if SMALLEST_SCALE <= number <= LARGEST_SCALE:
            return number
        if math.isfinite(number) and number > 0:
            expected = f"a scale that float32 can hold, from {SMALLEST_SCALE:.6g} to {LARGEST_SCALE:.6g}"
            wrong(node, name, expected, problems)
            return None
    advice = ""
    if isinstance(value, str) and _is_number(value):
        advice = "; YAML 1.1 reads it as text: write a point and a sign in the exponent (1.0e-3), and no quotes"
    wrong(node, name, "a finite number above 0", problems, advice)
    return None


def _is_number(written: str) -> bool:
    try:
        return math.isfinite(float(written))
    except ValueError:
        return False


def word(spellings: Mapping[str, str]) -> Reader:
    """A reader of one of some words, returning what the word stands for."""

    def read(node: Node, name: str, problems: Problems) -> str | None:
        value = node.value if isinstance(node, ScalarNode) else None
        if not isinstance(value, str):
            wrong(node, name, f"one of {', '.join(spellings)}", problems)
            return None
        if value not in spellings:
            problems.add(
                node.location,
                f"`{name}`: unknown word {show(value)}{did_you_mean(value, spellings)}"
                f" (expected one of: {', '.join(spellings)})",
            )
            return None
        return spellings[value]

    return read


def one_of(*words: str) -> Reader:
    """A reader of one of some words."""
    return word({each: each for each in words})


def block(node: Node, name: str, problems: Problems) -> tuple[int, int] | None:
    """Two whole numbers, `[out, in]`."""
    if not isinstance(node, SequenceNode) or len(node.items) != 2:
        wrong(node, name, "two whole numbers [out, in] such as [128, 128]", problems)
        return None
    rows, columns = (whole_number(item, name, problems) for item in node.items)
    return None if rows is None or columns is None else (rows, columns)
