"""How scales lie in memory for the products that read them: made, packed, swizzled, and one in place of several.

M rows of a matrix have G = ceil(K / group) scales each, [M, G] whatever the layout. All of these are plain torch, and
nothing waits for a GPU.

- K-major: strides (G, 1).
- MN-major: strides (1, round_up(M, 4)). Each group's column of M float32 begins at a multiple of 16 bytes, which the
  tensor memory accelerator asks of every stride (CUDA C++ Programming Guide, "Tensor Memory Access"); DeepGEMM's
  kernels for compute capability 9.0 read it. Rows M … round_up(M, 4) - 1 are there and hold anything.
- UE8M0: a power of two as its biased exponent, one byte, 2**(byte - 127) (OCP Microscaling Formats 1.0, section 5.4.1).
  Four lie in an int32, the first group in the lowest byte, [M, ceil(G / 4)], MN-major again; DeepGEMM reads it on
  compute capability 10.0.
- 128 × 4 blocks: of one-byte scales, for block-scaled products of compute capability 10.0. See `swizzle_128x4`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from policyquant.kernels.cpu import quantize as plain

ROWS_ALIGNMENT: Final = 4
"""Of float32 or int32: 16 bytes."""

_EXPONENT_BITS: Final = 0x7F800000


def mn_major_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of [..., G] scales in columns, of which all leading dimensions together are the M rows."""
    strides, rows = [], 1
    for size in reversed(shape[:-1]):
        strides.append(rows)
        rows = rows * size
    padded = (rows + ROWS_ALIGNMENT - 1) // ROWS_ALIGNMENT * ROWS_ALIGNMENT
    return (*reversed(strides), padded)


def empty_scales(x: torch.Tensor, shape: tuple[int, ...], mn_major: bool, dtype: torch.dtype) -> torch.Tensor:
    """Uninitialised scales of this shape on the device of x, K-major or MN-major."""
    if not mn_major:
        return x.new_empty(shape, dtype=dtype)
    strides = mn_major_strides(shape)
    return x.new_empty((shape[-1] * strides[-1],), dtype=dtype).as_strided(shape, strides)


def to_mn_major(scale: torch.Tensor) -> torch.Tensor:
    """The same [..., G] scales, MN-major."""
    return empty_scales(scale, tuple(scale.shape), True, scale.dtype).copy_(scale)


def to_ue8m0(scale: torch.Tensor) -> torch.Tensor:
    """Biased exponents, uint8, of float32 powers of two from 2**-126 to 2**127.

    Raises:
        ValueError: something else is among them. Looked for on a CPU only.
    """
    bits = scale.contiguous().view(torch.int32)
    if scale.device.type == "cpu":
        wrong = (bits & ~_EXPONENT_BITS != 0) | (bits == 0) | (bits == _EXPONENT_BITS)
        if bool(wrong.any()):
            found = float(scale.contiguous()[wrong][0])
            raise ValueError(f"a UE8M0 scale is a power of two from 2**-126 to 2**127, found {found!r}")
    return (bits >> 23).to(torch.uint8)


def from_ue8m0(exponents: torch.Tensor) -> torch.Tensor:
    """Float32 powers of two of biased exponents from 1 to 254, uint8."""
    return (exponents.to(torch.int32) << 23).view(torch.float32)


def pack_ue8m0(scale: torch.Tensor) -> torch.Tensor:
    """[M, G] float32 powers of two as int32 [M, ceil(G / 4)], MN-major. Bytes beyond the last group are 0.

    Raises:
        ValueError: as `to_ue8m0`.
    """
    rows, groups = scale.shape
    words = -(-groups // 4)
    exponents = torch.zeros((rows, words * 4), dtype=torch.uint8, device=scale.device)
    exponents[:, :groups] = to_ue8m0(scale)
    shifts = torch.arange(0, 32, 8, dtype=torch.int32, device=scale.device)
    # In int64, whose lowest 32 bits are taken, no sum overflows.
    packed = (exponents.reshape(rows, words, 4).long() << shifts).sum(-1)
    return to_mn_major(torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32))


def unpack_ue8m0(packed: torch.Tensor, groups: int) -> torch.Tensor:
    """[M, groups] float32, K-major, of int32 [M, ceil(groups / 4)]."""
    shifts = torch.arange(0, 32, 8, dtype=torch.int32, device=packed.device)
    exponents = (packed.unsqueeze(-1) >> shifts) & 0xFF
    return from_ue8m0(exponents.flatten(1)[:, :groups].contiguous())


def swizzle_128x4(scale: torch.Tensor) -> torch.Tensor:
    """One-byte scales [M, G] in blocks of 128 rows and 4 groups, flat: 512 bytes a block, blocks row by row.

    Inside a block, the scale of row r and group g is at byte (r % 32) · 16 + (r // 32) · 4 + g: four rows that are 32
    apart share 16 bytes (cuBLAS documentation, "1D Block Scaling Factors Layout"; torch calls it SWIZZLE_32_4_4).
    Rows and groups that fill the last blocks are 0.
    """
    rows, groups = scale.shape
    down, across = -(-rows // 128), -(-groups // 4)
    full = torch.zeros((down * 128, across * 4), dtype=torch.uint8, device=scale.device)
    full[:rows, :groups] = scale.view(torch.uint8)
    # [down, 4 (r // 32), 32 (r % 32), across, 4 (g)] to [down, across, 32, 4, 4].
    swizzled = full.reshape(down, 4, 32, across, 4).permute(0, 3, 2, 1, 4)
    return swizzled.reshape(-1).view(scale.dtype)


def unswizzle_128x4(swizzled: torch.Tensor, rows: int, groups: int) -> torch.Tensor:
    """[rows, groups] of what `swizzle_128x4` made of it."""
    down, across = -(-rows // 128), -(-groups // 4)
    blocks = swizzled.view(torch.uint8).reshape(down, across, 32, 4, 4).permute(0, 3, 2, 1, 4)
    return blocks.reshape(down * 128, across * 4)[:rows, :groups].contiguous().view(swizzled.dtype)


def requantize_to_one_scale(
    parts: Sequence[tuple[torch.Tensor, torch.Tensor]],
) -> tuple[torch.Tensor, torch.Tensor]:
    """FP8 parts of a merged weight, each codes [N, K] and a scale [1], as one weight [ΣN, K] with one scale [1].

    That scale is the largest of theirs. A part that has it keeps its codes; the others' become the codes of
    (q · scale, rounded to float32) / largest scale, which errs by half a step more.

    Raises:
        ValueError: there are no parts, or their codes are of different dtypes.
    """
    dtypes = {q.dtype for q, _ in parts}
    if len(dtypes) != 1:
        found = ", ".join(sorted(map(str, dtypes))) or "none"
        raise ValueError(f"parts of one weight have codes of one dtype, found {found}")
    dtype = dtypes.pop()
    one = torch.stack([scale.reshape(1) for _, scale in parts]).amax(0)
    codes = [
        torch.where(
            scale == one,
            q.view(torch.uint8),
            plain.static_scaled_fp8_quant(plain.dequantize(q, scale, torch.float32), one, dtype).view(torch.uint8),
        )
        for q, scale in parts
    ]
    return torch.cat(codes).view(dtype), one
