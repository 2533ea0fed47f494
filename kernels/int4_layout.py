"""How 4-bit codes lie in memory, and the same codes as compressed-tensors' `pack-quantized` format has them.

A code is a number from 0 to 15. Two lie in a byte, the even column in the lower half:

    packed [..., ⌈K / 2⌉] uint8       byte j = code[2 j] + 16 · code[2 j + 1]; the last half of an odd K is 0

Groups of 32, 64 or 128 columns of a row share a scale and a zero point, the last group of a row may be shorter:

    scale, zero point [..., ⌈K / group⌉]       w[k] ≈ (code[k] - zero point[group of k]) · scale[group of k]

A zero point is a code, uint8; where there is none it is 8, so that codes stand for -8 … 7.

compressed-tensors packs eight codes in an int32, [..., ⌈K / 8⌉], column i in bits 4 i … 4 i + 3. Its codes are
code - 8, and it adds 8 before it packs. So on a little-endian machine, which all here are, these int32 are the bytes
above, up to zeros at the end of a row: a checkpoint is read and written without a code being touched. Zero points are
packed there like codes, but along N: [..., ⌈N / 8⌉, groups]. Scales are the same tensor.
"""

from __future__ import annotations

from typing import Final

import torch
from torch.nn.functional import pad

GROUP_SIZES: Final = (32, 64, 128)
ZERO: Final = 8
"""The code of zero where there is no zero point."""

_BYTES: Final = 4
_PER_WORD: Final = 8


def pack(codes: torch.Tensor) -> torch.Tensor:
    """Codes [..., K], of 0 to 15, as bytes [..., ⌈K / 2⌉]."""
    padded = pad(codes, (0, codes.shape[-1] % 2)).to(torch.uint8)
    return padded[..., ::2] | padded[..., 1::2] << 4


def unpack(packed: torch.Tensor, columns: int) -> torch.Tensor:
    """Codes [..., columns] as uint8, of bytes [..., ⌈columns / 2⌉].

    Raises:
        ValueError: so many columns do not fill these bytes.
    """
    if packed.shape[-1] != -(-columns // 2):
        raise ValueError(f"{columns} codes take {-(-columns // 2)} bytes, found {packed.shape[-1]}")
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)[..., :columns]


def to_int32(packed: torch.Tensor) -> torch.Tensor:
    """The bytes [..., ⌈K / 2⌉] as compressed-tensors' `weight_packed`, int32 [..., ⌈K / 8⌉]."""
    # New memory, so that it starts where an int32 may.
    whole = pad(packed, (0, -packed.shape[-1] % _BYTES)).clone(memory_format=torch.contiguous_format)
    return whole.flatten().view(torch.int32).reshape(*whole.shape[:-1], whole.shape[-1] // _BYTES)


def from_int32(words: torch.Tensor, columns: int) -> torch.Tensor:
    """compressed-tensors' `weight_packed` of `columns` columns, int32 [..., ⌈K / 8⌉], as bytes [..., ⌈K / 2⌉].

    Raises:
        ValueError: so many columns do not fill these words.
    """
    if words.shape[-1] != -(-columns // _PER_WORD):
        raise ValueError(f"{columns} codes take {-(-columns // _PER_WORD)} int32, found {words.shape[-1]}")
    return words.contiguous().view(torch.uint8)[..., : -(-columns // 2)].contiguous()


def zero_points_to_int32(zero_point: torch.Tensor) -> torch.Tensor:
    """Zero points [..., N, groups] as compressed-tensors' `weight_zero_point`, int32 [..., ⌈N / 8⌉, groups]."""
    return to_int32(pack(zero_point.transpose(-1, -2))).transpose(-1, -2).contiguous()


def zero_points_from_int32(words: torch.Tensor, rows: int) -> torch.Tensor:
    """compressed-tensors' `weight_zero_point` of `rows` rows, int32 [..., ⌈N / 8⌉, groups], as uint8 [..., N, groups].

    Raises:
        ValueError: so many rows do not fill these words.
    """
    return unpack(from_int32(words.transpose(-1, -2), rows), rows).transpose(-1, -2).contiguous()
