"""Layouts of scales: each is what its docstring says, and what is packed comes back."""

from __future__ import annotations

import pytest
import torch

from policyquant.kernels import reference, scale_layouts

E4M3 = torch.float8_e4m3fn
SHAPES = [(0, 3), (1, 1), (3, 5), (4, 4), (129, 9), (256, 7)]


def powers(*shape: int) -> torch.Tensor:
    exponents = torch.randint(-126, 128, shape, generator=torch.Generator().manual_seed(0))
    return torch.ldexp(torch.ones(shape), exponents)


@pytest.mark.parametrize("shape", SHAPES)
def test_columns_begin_at_multiples_of_four_rows(shape: tuple[int, int]) -> None:
    scale = powers(*shape)
    columns = scale_layouts.to_mn_major(scale)
    assert torch.equal(columns, scale)
    assert columns.stride() == (1, (shape[0] + 3) // 4 * 4)


@pytest.mark.parametrize("shape", SHAPES)
def test_packed_exponents_are_unpacked(shape: tuple[int, int]) -> None:
    scale = powers(*shape)
    packed = scale_layouts.pack_ue8m0(scale)
    assert packed.dtype == torch.int32
    assert packed.shape == (shape[0], -(-shape[1] // 4))
    assert packed.stride() == (1, (shape[0] + 3) // 4 * 4)
    assert torch.equal(scale_layouts.unpack_ue8m0(packed, shape[1]), scale)


def test_the_first_group_is_in_the_lowest_byte_and_bytes_without_a_group_are_zero() -> None:
    packed = scale_layouts.pack_ue8m0(torch.tensor([[1.0, 2.0, 0.5, 2.0**127, 4.0]]))
    words = [word & 0xFFFFFFFF for word in packed[0].tolist()]
    assert words == [127 | 128 << 8 | 126 << 16 | 254 << 24, 129]


@pytest.mark.parametrize("wrong", [3.0, 0.0, -2.0, float("inf"), float("nan"), 2.0**-127])
def test_what_is_no_power_of_two_has_no_exponent(wrong: float) -> None:
    with pytest.raises(ValueError, match="a power of two"):
        scale_layouts.to_ue8m0(torch.tensor([1.0, wrong]))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_scale_in_blocks_lies_where_cublas_says(shape: tuple[int, int]) -> None:
    rows, groups = shape
    scale = torch.arange(rows * groups).remainder(251).add(1).to(torch.uint8).reshape(shape)
    flat = scale_layouts.swizzle_128x4(scale)
    across = -(-groups // 4)
    assert flat.numel() == -(-rows // 128) * across * 512
    for row in range(0, rows, 7):
        for group in range(groups):
            block = row // 128 * across + group // 4
            inside = row % 128 % 32 * 16 + row % 128 // 32 * 4 + group % 4
            assert flat[block * 512 + inside] == scale[row, group]
    assert torch.equal(scale_layouts.unswizzle_128x4(flat, rows, groups), scale)
    assert int(flat.long().sum()) == int(scale.long().sum()), "what fills the blocks is zero"


def test_the_part_with_the_largest_scale_keeps_its_codes_and_the_others_err_by_a_step() -> None:
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(n, 64, generator=generator) * size for n, size in ((8, 1.0), (4, 0.3), (4, 2.0))]
    parts = [reference.dynamic_scaled_fp8_quant(w) for w in weights]
    merged, one = scale_layouts.requantize_to_one_scale(parts)
    assert one.tolist() == [max(float(scale) for _, scale in parts)]
    assert torch.equal(merged[12:].view(torch.uint8), parts[2][0].view(torch.uint8))
    values = torch.cat([reference.dequantize(q, scale) for q, scale in parts])
    again = reference.dequantize(merged, one)
    bound = torch.maximum(values.abs() * 2.0**-4, one.double() * 2.0**-10) * (1 + 2.0**-20)
    assert bool(((again - values).abs() <= bound).all())


def test_parts_of_different_formats_are_refused() -> None:
    one = torch.ones(1)
    parts = [(torch.ones(1, 1).to(E4M3), one), (torch.ones(1, 1).to(torch.float8_e5m2), one)]
    with pytest.raises(ValueError, match=r"codes of one dtype, found torch\.float8_e4m3fn, torch\.float8_e5m2"):
        scale_layouts.requantize_to_one_scale(parts)
