"""Collects what is wrong with a policy, so that one reading tells a person all of it."""

from __future__ import annotations

from typing import Final

from policyquant.errors import Location, PolicyError, Problem, did_you_mean
from policyquant.policy.document import ScalarNode, show

MOST_PROBLEMS: Final = 100
"""Nobody reads on after these, and the search for near spellings must not grow with a hostile file."""


class Problems:
    """The problems found so far."""

    def __init__(self) -> None:
        self.found: list[Problem] = []
        self.alternatives = 0
        """Of all patterns so far, `{a,b}` written out: what a policy costs, whatever the size of its text."""

    def add(self, location: Location, message: str) -> None:
        """Note one problem.

        Raises:
            PolicyError: there are so many already that reading on is of no use.
        """
        problem = Problem(location, message)
        if problem in self.found:
            return  # A node that is reached twice through an alias.
        self.found.append(problem)
        if len(self.found) == MOST_PROBLEMS:
            self.raise_if_any()

    def unknown(self, key: ScalarNode, what: str, known: tuple[str, ...], advice: str = "") -> None:
        """Note a word that is none of `known`, with the nearest of them and the whole list."""
        word = str(key.value)
        hint = advice or did_you_mean(word, known)
        self.add(key.location, f"unknown {what} {show(word)}{hint} (known: {', '.join(known)})")

    def raise_if_any(self) -> None:
        """Raise them all as one PolicyError, in the order of the files' lines."""
        if not self.found:
            return
        files = list(dict.fromkeys(problem.location.file for problem in self.found))
        found = sorted(
            self.found,
            key=lambda each: (files.index(each.location.file), each.location.line or 0, each.location.column or 0),
        )
        if len(found) == MOST_PROBLEMS:
            found.append(Problem(found[-1].location, f"{MOST_PROBLEMS} problems so far; the rest is not looked at"))
        raise PolicyError(found)
