"""Element types as safetensors spells them, and their sizes.

The table is the whole of the format (safetensors 0.8). Types below eight bits are packed without gaps: `F4` of shape
[2, 8] is 8 bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Final

DTYPE_BITS: Final[dict[str, int]] = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}
"""dtype → bits of one element."""

FP8_DTYPES: Final = frozenset({"F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"})
"""The FP8 types that carry values; `F8_E8M0` carries scales only."""

_TORCH: Final[dict[str, str]] = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "int16": "I16",
    "short": "I16",
    "uint16": "U16",
    "float16": "F16",
    "half": "F16",
    "bfloat16": "BF16",
    "int32": "I32",
    "int": "I32",
    "uint32": "U32",
    "float32": "F32",
    "float": "F32",
    "complex64": "C64",
    "float64": "F64",
    "double": "F64",
    "int64": "I64",
    "long": "I64",
    "uint64": "U64",
}

PACKED_FP4: Final = "float4_e2m1fn_x2"
"""PyTorch's only type whose element is two of safetensors' (`F4`): its last dimension counts bytes."""


def safetensors_dtype(dtype: object) -> str | None:
    """The safetensors spelling of a dtype: of a safetensors spelling itself, a `torch.dtype`, or a PyTorch name.

    None if safetensors has no such type.
    """
    text = str(dtype)
    if text in DTYPE_BITS:
        return text
    return _TORCH.get(text.removeprefix("torch."))


def dtype_spellings() -> Iterable[str]:
    """Every spelling that `safetensors_dtype` takes, less the `torch.` prefix."""
    return (*DTYPE_BITS, *_TORCH)


def stored_bytes(dtype: str | None, shape: tuple[int, ...] | None) -> int | None:
    """Bytes that a tensor takes; None if its dtype or shape is unknown."""
    if dtype is None or shape is None:
        return None
    return (prod(shape) * DTYPE_BITS[dtype] + 7) // 8
