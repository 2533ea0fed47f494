"""Sizes and counts for people."""

from __future__ import annotations

from typing import Final

UNKNOWN_SIZES: Final = "unknown: the source does not tell all shapes"
"""What is said once in the place of all totals that depend on shapes."""

_UNITS: Final = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def bytes_text(size: int | None) -> str:
    """`44.3 GiB`; `unknown` if it is."""
    if size is None:
        return "unknown"
    if size < 1024:
        return f"{size} bytes"
    value = float(size)
    for unit in _UNITS:
        value /= 1024
        if value < 999.5 or unit == _UNITS[-1]:
            break
    return f"{_three_digits(value)} {unit}"


def parameters_text(count: int | None) -> str:
    """`46.7B`, as the field writes it; `unknown` if it is."""
    if count is None:
        return "unknown"
    for limit, unit in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K")):
        if count >= limit * 0.9995:
            return f"{_three_digits(count / limit)}{unit}"
    return str(count)


def bits_text(bits: float | None) -> str:
    """`8.25`; `unknown` if it is."""
    return "unknown" if bits is None else f"{bits:.2f}"


def count_text(count: int, word: str, plural: str | None = None) -> str:
    """`1 layer`, `1,059 layers`."""
    return f"{count:,} {word if count == 1 else plural or word + 's'}"


def share_text(part: int | None, whole: int | None) -> str:
    """`51.4 %`; empty if there is nothing to compare."""
    return f"{100 * part / whole:.1f} %" if part is not None and whole else ""


def shape_text(shape: tuple[int, ...] | None) -> str:
    """`14336x4096`; `?` if unknown, empty for a layer without a weight."""
    return "?" if shape is None else "x".join(map(str, shape))


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
