"""Patterns given on the command line, and what to say when they reach nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from policyquant.errors import PolicyQuantError
from policyquant.policy.patterns import Pattern, PatternError

if TYPE_CHECKING:
    from policyquant.plan.context import Context


def compile_pattern(text: str) -> Pattern:
    """A pattern.

    Raises:
        PolicyQuantError: it is none; says where in it.
    """
    try:
        return Pattern.compile(text)
    except PatternError as error:
        raise PolicyQuantError(f"the pattern {text!r}, at character {error.offset + 1}: {error}") from None


def reaches_nothing(pattern: Pattern, context: Context | None) -> str:
    """That a pattern reaches no layer, with what was probably meant."""
    hint = ""
    if context is not None:
        from policyquant.plan.suggest import suggestion

        hint = suggestion(context, pattern)
    return f"{pattern.text!r} reaches no layer{hint}"
