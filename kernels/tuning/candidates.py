"""Which configurations are tried for a class of shapes: data, and what a GPU's registers and shared memory allow.

A space says which values each key may take; keys that it does not name stay as they are. What fits by these rules may
still not compile: the search counts that as a failure and goes on.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

MOST: Final = 64
"""Candidates of a class, those first that differ least from the present configuration."""

SHARED_MEMORY: Final = {(8, 0): 163, (8, 6): 99, (8, 7): 163, (8, 9): 99, (9, 0): 227, (10, 0): 227}
"""KiB that a block may have, by compute capability: CUDA C++ Programming Guide, technical specifications."""

_ROWS_OF_TENSOR_CORES: Final = 64
_MOST_SUMS: Final = 128
"""Float32 sums in the registers of a thread, of 255: above that the kernels spill."""
_ELEMENTS_OF_A_THREAD: Final = (4, 64)
"""Of kernels that encode: fewer are loads of less than 8 bytes, more do not stay in registers."""
_SCALE_BLOCK: Final = 128

Configuration = Mapping[str, Any]
Fits = Callable[[str, Configuration, int], "str | None"]
"""(class of shapes, configuration, bytes of shared memory) → why it does not fit; None: it does."""


@dataclass(frozen=True, slots=True)
class Space:
    """What may change for classes of shapes that `pattern` matches in full."""

    pattern: str
    choices: Mapping[str, Sequence[Any]]
    fits: Fits


def candidates(
    family: str, shape_class: str, present: Configuration, capability: tuple[int, int]
) -> list[Configuration]:
    """What to try in place of the present configuration, nearest first; at most `MOST`."""
    space = _space(family, shape_class)
    if space is None:
        return []
    keys = [key for key in space.choices if key in present]
    choices = product(*(space.choices[key] for key in keys))
    made = ({**present, **dict(zip(keys, values, strict=True))} for values in choices)
    shared = shared_memory(capability)
    fitting: list[Configuration] = [
        each for each in made if each != present and space.fits(shape_class, each, shared) is None
    ]
    return sorted(fitting, key=lambda each: _distance(present, each))[:MOST]


def why_not(
    family: str, shape_class: str, present: Configuration, other: Configuration, capability: tuple[int, int]
) -> str | None:
    """Why a configuration is none that would be tried in place of the present one; None: it would."""
    space = _space(family, shape_class)
    if space is None:
        return "nothing is tried for this class of shapes"
    if other.keys() != present.keys():
        return f"it has {', '.join(other) or 'nothing'}; expected {', '.join(present)}"
    for key, value in other.items():
        allowed = {present[key], *space.choices.get(key, ())}
        if type(value) is not type(present[key]) or value not in allowed:
            return f"{key} is {value!r}; expected {' or '.join(map(repr, sorted(allowed)))}"
    return space.fits(shape_class, other, shared_memory(capability))


def shared_memory(capability: tuple[int, int]) -> int:
    """Bytes that a block may have; of the closest older GPU where this one is not known."""
    known = max((each for each in SHARED_MEMORY if each <= capability), default=min(SHARED_MEMORY))
    return SHARED_MEMORY[known] * 1024


def _space(family: str, shape_class: str) -> Space | None:
    return next((each for each in SPACES.get(family, ()) if re.fullmatch(each.pattern, shape_class)), None)


def _distance(present: Configuration, other: Configuration) -> tuple[int, float]:
    """How many keys differ, and how far."""
    changed = [key for key in present if present[key] != other[key]]
    return len(changed), sum(abs(math.log2(max(1, other[key]) / max(1, present[key]))) for key in changed)


def _product_fits(shape_class: str, tile: Configuration, shared: int) -> str | None:
    """Of codes with codes."""
    m, n, k = tile["BLOCK_M"], tile["BLOCK_N"], tile["BLOCK_K"]
    blocks = shape_class.endswith("blocks")
    if (n if tile["SWAPPED"] else m) < _ROWS_OF_TENSOR_CORES:
        return f"tensor cores multiply 8 bits for {_ROWS_OF_TENSOR_CORES} rows or more"
    if blocks and n > _SCALE_BLOCK:
        return f"a tile is wider than the {_SCALE_BLOCK} channels of a scale"
    copies = 2 if tile.get("PROMOTED") or blocks else 1
    return _sums_fit(m * n * copies, tile) or _memory_fits((m + n) * k, tile, shared)


def _weight_only_fits(shape_class: str, tile: Configuration, shared: int) -> str | None:
    """Of activations with codes, which are decoded in registers."""
    m, n, k = tile["BLOCK_M"], tile["BLOCK_N"], tile["BLOCK_K"]
    size = 4 if shape_class.endswith("float32") else 2
    return _sums_fit(2 * m * n, tile) or _memory_fits((m * size + n) * k, tile, shared)


def _sums_fit(sums: int, tile: Configuration) -> str | None:
    each = sums // (32 * tile["num_warps"])
    return None if each <= _MOST_SUMS else f"{each} sums a thread, of at most {_MOST_SUMS}"


def _memory_fits(bytes_of_a_stage: int, tile: Configuration, shared: int) -> str | None:
    needed = bytes_of_a_stage * tile["num_stages"]
    return None if needed <= shared else f"{needed} bytes of shared memory, of {shared}"


def _elements(count: Callable[[str, Configuration], int]) -> Fits:
    """Of kernels whose programs hold so many elements at a time."""

    def fits(shape_class: str, tile: Configuration, shared: int) -> str | None:
        each = count(shape_class, tile) / (32 * tile["num_warps"])
        least, most = _ELEMENTS_OF_A_THREAD
        return None if least <= each <= most else f"{each:g} elements a thread; expected {least} to {most}"

    return fits


def _number(shape_class: str) -> int:
    """The first one in a name."""
    found = re.search(r"\d+", shape_class)
    assert found is not None
    return int(found[0])


_tile: Final = _elements(lambda _, tile: tile["BLOCK_M"] * tile["BLOCK_N"])
_row: Final = _elements(lambda _, tile: tile["BLOCK_N"])
_groups: Final = _elements(lambda name, tile: tile["BLOCK_M"] * tile["BLOCK_GROUPS"] * _number(name))


def _of_groups(shape_class: str, tile: Configuration) -> int:
    return int(tile["BLOCK_M"]) * _number(shape_class)


_WARPS: Final = (1, 2, 4, 8, 16)
_FEW: Final = {"BLOCK_N": (64, 128), "num_warps": (4, 8), "num_stages": (3, 4, 5, 6, 7)}
_KINDS: Final = "(, blocks|, fast accumulation)?"
_PRODUCTS: Final = (
    Space(f"16 rows{_KINDS}", {"BLOCK_M": (16,), **_FEW}, _product_fits),
    Space(f"32 rows{_KINDS}", {"BLOCK_M": (16, 32), **_FEW}, _product_fits),
    Space(f"64 rows{_KINDS}", {"BLOCK_M": (16, 32, 64), "SWAPPED": (True, False), **_FEW}, _product_fits),
    Space(
        f"128 rows{_KINDS}",
        {
            "BLOCK_M": (32, 64, 128),
            "BLOCK_N": (64, 128, 256),
            "GROUP_M": (1, 8),
            "SWAPPED": (True, False),
            "num_warps": (4, 8),
            "num_stages": (3, 4, 5),
        },
        _product_fits,
    ),
    Space(
        f"many rows{_KINDS}",
        {
            "BLOCK_M": (64, 128, 256),
            "BLOCK_N": (64, 128, 256),
            "GROUP_M": (4, 8, 16),
            "num_warps": (4, 8),
            "num_stages": (3, 4, 5),
        },
        _product_fits,
    ),
)
_ROWS: Final = {"BLOCK_M": (1, 2, 4, 8, 16, 32, 64), "num_warps": _WARPS}
_STEPS: Final = Space("(per token, )?in steps", {"BLOCK_N": (2048, 4096, 8192, 16384), "num_warps": _WARPS}, _row)

_WEIGHT_ONLY: Final = (
    Space(
        "(few|some|many) rows float32",
        {
            "BLOCK_M": (16, 32, 64),
            "BLOCK_N": (32, 64, 128),
            "BLOCK_K": (16, 32, 64),
            "num_warps": (4, 8),
            "num_stages": (2, 3, 4),
        },
        _weight_only_fits,
    ),
    Space(
        "few rows",
        {
            "BLOCK_M": (16,),
            "BLOCK_N": (64, 128),
            "BLOCK_K": (64, 128),
            "PROGRAMS": (1, 2, 4, 8),
            "num_warps": (4, 8),
            "num_stages": (3, 4, 5, 6),
        },
        _weight_only_fits,
    ),
    Space(
        "some rows",
        {
            "BLOCK_M": (16, 32, 64),
            "BLOCK_N": (64, 128),
            "BLOCK_K": (64, 128),
            "PROGRAMS": (1, 2, 4),
            "num_warps": (4, 8),
            "num_stages": (2, 3, 4),
        },
        _weight_only_fits,
    ),
    Space(
        "many rows",
        {
            "BLOCK_M": (64, 128, 256),
            "BLOCK_N": (64, 128),
            "BLOCK_K": (32, 64, 128),
            "GROUP_M": (4, 8, 16),
            "num_warps": (4, 8),
            "num_stages": (2, 3, 4),
        },
        _weight_only_fits,
    ),
)
_PARTS: Final = Space("sum of parts", {"BLOCK_N": (128, 256, 512, 1024, 2048), "num_warps": _WARPS}, _row)

_UNALIGNED: Final[Mapping[str, Sequence[Any]]] = {
    "BLOCK_M": (16, 32, 64),
    "BLOCK_N": (64, 128),
    "num_warps": (4, 8),
    "num_stages": (2, 3),
}

_OF_EXPERTS: Final = (
    *_PRODUCTS,
    Space("unaligned", {"BLOCK_K": (32, 64), **_UNALIGNED}, _product_fits),
    Space("unaligned, blocks", _UNALIGNED, _product_fits),
)

SPACES: Final[Mapping[str, Sequence[Space]]] = {
    "scaled_mm": (*_PRODUCTS, _PARTS),
    "int8_mm": (
        *_PRODUCTS,
        _PARTS,
        Space(
            "unaligned",
            {
                "BLOCK_M": (16, 32, 64),
                "BLOCK_N": (64, 128),
                "BLOCK_K": (32, 64),
                "num_warps": (4, 8),
                "num_stages": (2, 3),
            },
            _product_fits,
        ),
    ),
    "grouped_mm": _OF_EXPERTS,
    "fused_moe": _OF_EXPERTS,
    "weight_only_mm": _WEIGHT_ONLY,
    "int4_weight_only_mm": _WEIGHT_ONLY,
    "int4_quantize": (
        Space(r"groups of \d+", {"BLOCK_M": (8, 16, 32, 64, 128), "num_warps": _WARPS}, _elements(_of_groups)),
    ),
    "quantize": (
        Space(
            "wide tile",
            {"BLOCK_M": (1, 2, 4), "BLOCK_N": (1024, 2048, 4096, 8192), "num_warps": _WARPS},
            _tile,
        ),
        Space("tile", {"BLOCK_M": (8, 16, 32, 64), "BLOCK_N": (64, 128, 256), "num_warps": _WARPS}, _tile),
        Space(r"row \d+", _ROWS, _tile),
        _STEPS,
    ),
    "int8_quantize": (Space(r"row \d+", _ROWS, _tile),),
    "group_quantize": (
        # A tile has 4096 elements, whatever its height; a block is held whole.
        Space("many rows", _ROWS, _elements(lambda _, tile: 4096)),
        Space("few rows", {"BLOCK_M": (1, 2, 4), "num_warps": _WARPS}, _elements(lambda _, tile: 4096)),
        Space("block", {"num_warps": (4, 8, 16, 32)}, _elements(lambda _, tile: _SCALE_BLOCK**2)),
    ),
    "activation": (
        Space(
            "tile 2048",
            {"BLOCK_M": (1, 2, 4), "BLOCK_N": (1024, 2048, 4096), "num_warps": _WARPS},
            _tile,
        ),
        Space(r"(tile|per token) \d+", _ROWS, _tile),
        _STEPS,
        Space(
            r"group \d+ (row|column) major",
            {"BLOCK_M": (1, 2, 4, 8, 16), "BLOCK_GROUPS": (1, 2, 4, 8, 16, 32, 64, 128), "num_warps": _WARPS},
            _groups,
        ),
    ),
    "norm": (Space(r"row \d+", _ROWS, _tile), _STEPS),
    "kv_cache": (
        Space(
            "(few|many) tokens",
            {"ELEMENTS": (512, 1024, 2048, 4096, 8192), "num_warps": _WARPS},
            _elements(lambda _, tile: tile["ELEMENTS"]),
        ),
    ),
}
"""Family → its spaces; the first whose pattern matches counts."""
