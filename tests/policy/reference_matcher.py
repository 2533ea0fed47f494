"""The glob language once more, as briefly as possible: by backtracking, over one name, with no idea of speed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)|(-\d+)")


def matches(pattern: str, name: str, sizes: Mapping[str, int] | None = None) -> bool:
    """Whether `pattern` (a valid glob) matches all of `name`."""
    return any(
        _from(glob, name, 0, sizes or {}) or (glob.startswith("*.") and _from(glob[2:], name, 0, sizes or {}))
        for glob in _expand(pattern)
    )


def _expand(pattern: str) -> Iterator[str]:
    """Braces away, innermost first. Ranges stay, as `<first..last>`."""
    start = None
    position = 0
    while position < len(pattern):
        character = pattern[position]
        if character == "\\":
            position += 1
        elif character == "[":
            position = _end_of_set(pattern, position) - 1
        elif character == "{":
            start = position
        elif character == "}" and start is not None:
            for item in _items(pattern[start + 1 : position]):
                match = _RANGE.fullmatch(item)
                if match:
                    item = f"<{match[3]}..{match[3]}>" if match[3] else f"<{item}>"
                yield from _expand(pattern[:start] + item + pattern[position + 1 :])
            return
        position += 1
    yield pattern


def _items(text: str) -> list[str]:
    items, position, begin = [], 0, 0
    while position < len(text):
        if text[position] == "\\":
            position += 1
        elif text[position] == "[":
            position = _end_of_set(text, position) - 1
        elif text[position] == ",":
            items.append(text[begin:position])
            begin = position + 1
        position += 1
    return [*items, text[begin:]]


def _end_of_set(text: str, start: int) -> int:
    position = start + 1 + text.startswith("!", start + 1)
    first = True
    while first or text[position] != "]":
        first = False
        position += 1 + (text[position] == "\\")
    return position + 1


def _from(glob: str, name: str, at: int, sizes: Mapping[str, int]) -> bool:
    if not glob:
        return at == len(name)
    rest = glob[1:]
    if glob[0] == "*":
        return any(_from(rest, name, i, sizes) for i in range(at, len(name) + 1))
    if glob[0] == "<":
        first, last = map(int, glob[1 : glob.index(">")].split(".."))
        part = name[at:].partition(".")[0]
        if not re.fullmatch(r"0|[1-9]\d*", part):
            return False
        size = sizes.get(name[:at].rstrip("."), 0)
        low, high = (end + size if end < 0 else end for end in (first, last))
        return max(low, 0) <= int(part) <= high and _from(glob[glob.index(">") + 1 :], name, at + len(part), sizes)
    if at == len(name):
        return False
    if glob[0] == "?":
        return name[at] != "." and _from(rest, name, at + 1, sizes)
    if glob[0] == "[":
        end = _end_of_set(glob, 0)
        return name[at] != "." and _in_set(glob[1 : end - 1], name[at]) and _from(glob[end:], name, at + 1, sizes)
    if glob[0] == "\\":
        return name[at] == glob[1] and _from(glob[2:], name, at + 1, sizes)
    return name[at] == glob[0] and _from(rest, name, at + 1, sizes)


def _in_set(body: str, character: str) -> bool:
    negated = body.startswith("!")
    inside, position = False, int(negated)
    while position < len(body):
        position += body[position] == "\\"
        low = high = body[position]
        position += 1
        if body[position : position + 1] == "-" and position + 1 < len(body):
            position += 1 + (body[position + 1] == "\\")
            high = body[position]
            position += 1
        inside = inside or low <= character <= high
    return inside != negated
