"""Many problems as one message."""

from __future__ import annotations

from collections.abc import Iterable


def listed(title: str, problems: Iterable[str], most: int = 50) -> str:
    """A title with the number of problems, and one line for each; repeated ones are told once."""
    lines = list(dict.fromkeys(problems))
    shown = [f"  {line}" for line in lines[:most]]
    if len(lines) > most:
        shown.append(f"  and {len(lines) - most:,} more")
    return "\n".join([f"{title}: {len(lines):,} problem{'' if len(lines) == 1 else 's'}", *shown])
