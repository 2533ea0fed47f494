"""What a pattern that reaches nothing was probably meant to be."""

from __future__ import annotations

import re
from typing import Final

from policyquant.errors import nearest
from policyquant.inventory.layers import INDEX, NAMESPACES, NameForm
from policyquant.inventory.spans import escape
from policyquant.plan.context import Context
from policyquant.plan.units import Unit
from policyquant.policy.patterns import Pattern, PatternError

_MISREAD: Final = re.compile(r"(?:^|[.{])([0-9]+)[-:]([0-9]+)(?:$|[.}])").search
"""A range as other languages write it: `{4-7}`, `0:4`."""

_ONLY_INDICES: Final = re.compile(r"\{(?:-?[0-9]+(?:\.\.-?[0-9]+)?,?)+\}").sub
"""Replaces braces that hold nothing but indices."""

MOST_SUGGESTIONS = 20
"""A policy for another model can have thousands of dead rules; the first few tell the story."""


def suggestion(context: Context, pattern: Pattern) -> str:
    """`"; did you mean '…'?"` or `"; nearest names: …"`, or the empty string."""
    context.suggestions += 1
    if context.suggestions > MOST_SUGGESTIONS:
        return ""
    misread = _MISREAD(pattern.text)
    if misread and not pattern.is_regex:
        first, last = misread.group(1, 2)
        return f"; an index range is written {{{first}..{last}}}"
    if "," in pattern.text and "{" not in pattern.text and not pattern.is_regex:
        return "; several patterns are written as a list, or as alternatives: {a,b}"
    corrected = _completed(context, pattern) or _corrected(context, pattern)
    if corrected:
        return f"; did you mean {corrected!r}?"
    outside = _outside(context, pattern)
    if outside:
        return outside
    close = _nearest_names(context, pattern)
    return f"; nearest names: {', '.join(close)}" if close else ""


def _reaches(context: Context, text: str) -> bool:
    try:
        return context.matcher.match(Pattern.compile(text)).namespace is not None
    except PatternError:
        return False


def _completed(context: Context, pattern: Pattern) -> str | None:
    """The pattern for names that end as it says, if it says no beginning: `*.q_proj` for `q_proj`."""
    if pattern.is_regex:
        longer = f"re:.*{pattern.text.removeprefix('re:')}"
    elif pattern.text.startswith("*"):
        return None
    else:
        longer = f"*.{pattern.text}"
    return longer if _reaches(context, longer) else None


def _outside(context: Context, pattern: Pattern) -> str:
    """Which indices there are, if all that is wrong with the pattern is that its own are none of them."""
    if pattern.is_regex:
        return ""
    # Any index will do for the braces: what counts is whether there would be layers without them.
    parts = _ONLY_INDICES("0", pattern.text).split(".")
    for position, part in enumerate(parts):
        if not part.isdecimal():
            continue
        container = ".".join(parts[:position])
        for namespace in NAMESPACES:
            values = context.matcher.trees[namespace].indices_in(container)
            if values and _reaches(context, ".".join((*parts[:position], "*", *parts[position + 1 :]))):
                return f"; the indices in {container} are {values[0]} to {values[-1]}"
    return ""


def _corrected(context: Context, pattern: Pattern) -> str | None:
    """The pattern with each part that no name has replaced by the nearest that some name has, if that reaches
    something."""
    if pattern.is_regex:
        return None
    known = _known_parts(context)
    parts = pattern.text.split(".")
    literal = set(pattern.literal_parts())
    wrong = [i for i, part in enumerate(parts) if part in literal and part not in known and not part.isdecimal()]
    if not wrong:
        return None
    for i in wrong:
        close = nearest(parts[i], known, count=1)
        if not close:
            return None
        parts[i] = escape(close[0])
    text = ".".join(parts)
    return text if _reaches(context, text) else None


def _known_parts(context: Context) -> set[str]:
    return set().union(*(context.matcher.trees[namespace].parts() for namespace in NAMESPACES))


def _nearest_names(context: Context, pattern: Pattern) -> list[str]:
    """Names of the model closest to the pattern, with the pattern's indices where that gives a name of the model."""
    written = pattern.text.removeprefix("re:").replace("\\.", ".").removeprefix("*.").removeprefix(".*")
    parts = written.split(".")
    numbers = [part for part in parts if part.isdecimal()]
    wanted = ".".join(INDEX if part.isdecimal() or part == "*" else part for part in parts)
    candidates: dict[str, tuple[Unit, NameForm]] = {}
    for namespace in NAMESPACES:
        for unit in context.units:
            for form in unit.part.names.get(namespace, ()):
                tail = ".".join(form.template.split(".")[-len(parts) :])
                candidates.setdefault(form.template, (unit, form))
                candidates.setdefault(tail, (unit, form))
    return list(dict.fromkeys(_filled(*candidates[name], numbers) for name in nearest(wanted, candidates)))


def _filled(unit: Unit, form: NameForm, numbers: list[str]) -> str:
    if len(numbers) == len(form.positions):
        given = {p: int(n) + o for p, o, n in zip(form.positions, form.offsets, numbers, strict=True)}
        for indices in unit.indices:
            if all(indices[position] == value for position, value in given.items()):
                return form.fill(indices)
    return form.fill(unit.indices[0])
