"""Encoding with a scale for each group or block: the reference's codes and scales to the bit, in both layouts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from policyquant.kernels import dispatch, ops, reference
from tests.kernels import hostile
from tests.kernels.device import DEVICE

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", params=["torch", "triton", "cuda"], autouse=True)
def implementation(request: pytest.FixtureRequest) -> Iterator[None]:
    """Everything here runs by each, and each gives the same codes."""
    with dispatch.force(request.param):
        yield


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(DEVICE)


def assert_same(found: tuple[torch.Tensor, torch.Tensor], expected: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Codes to the byte, one NaN as good as another, and scales."""
    codes, wanted = found[0], expected[0]
    assert codes.dtype == wanted.dtype
    assert codes.is_contiguous()
    equal = codes.view(torch.uint8) == wanted.view(torch.uint8)
    assert bool((equal | (reference.decode(codes).isnan() & reference.decode(wanted).isnan())).all())
    assert found[1].dtype == torch.float32
    assert torch.equal(found[1], expected[1])


any_way = pytest.mark.parametrize(
    ("column_major", "power_of_two"), [(False, False), (True, False), (False, True), (True, True)]
)


@any_way
@pytest.mark.parametrize("dtype", [E4M3, E5M2])
@given(x=hostile.tensors(), group_size=st.sampled_from([32, 64, 128]), columns=st.integers(0, 140))
@settings(max_examples=15)
def test_groups_have_the_codes_and_scales_of_the_reference(
    column_major: bool, power_of_two: bool, dtype: torch.dtype, x: torch.Tensor, group_size: int, columns: int
) -> None:
    if x.shape[-1]:
        x = x.repeat(1, columns)[:, :columns]
    x = x.to(DEVICE)
    assert_same(
        ops.group_fp8_quant(x, group_size, column_major, power_of_two, dtype),
        reference.group_fp8_quant(x, group_size, column_major, power_of_two, dtype),
    )


@pytest.mark.parametrize("layout", hostile.LAYOUTS)
@pytest.mark.parametrize("source", hostile.FLOATS)
def test_groups_of_any_layout_and_dtype_are_those_of_their_copy(layout: str, source: torch.dtype) -> None:
    x = hostile.laid_out(randn(5, 200).cpu().to(source), layout).to(DEVICE)
    assert_same(ops.group_fp8_quant(x), reference.group_fp8_quant(x.contiguous()))
    assert_same(ops.block_fp8_quant(x), reference.block_fp8_quant(x.contiguous()))


@pytest.mark.parametrize("rows", [0, 1, 3, 4, 5, 9])
@pytest.mark.parametrize("lead", [(), (2,)])
def test_scales_in_columns_begin_at_multiples_of_16_bytes(rows: int, lead: tuple[int, ...]) -> None:
    _, scale = ops.group_fp8_quant(randn(*lead, rows, 300), column_major=True)
    total = rows * (2 if lead else 1)
    assert scale.shape == (*lead, rows, 3)
    assert scale.stride()[-2:] == (1, -(-total // 4) * 4)
    fake = torch.ops.policyquant.group_fp8_quant(torch.empty(*lead, rows, 300, device="meta"), 128, True, False, E4M3)[
        1
    ]
    assert fake.stride() == scale.stride()


@pytest.mark.parametrize("power_of_two", [False, True])
def test_neighbours_of_results_are_not_written(power_of_two: bool) -> None:
    x = randn(3, 130)
    codes = torch.full((5, 130), 0x55, dtype=torch.uint8, device=DEVICE)
    scales = torch.full((2, 8), -1.0, device=DEVICE)
    torch.ops.policyquant.group_fp8_quant.out(
        x, 128, True, power_of_two, out=codes.view(E4M3)[1:4], out_scale=scales.as_strided((3, 2), (1, 4), 4)
    )
    assert bool((codes[[0, 4]] == 0x55).all())
    assert bool((scales.flatten()[[0, 1, 2, 3, 7, 11, 12, 13, 14, 15]] == -1).all())
    expected = reference.group_fp8_quant(x, power_of_two=power_of_two)
    assert_same((codes.view(E4M3)[1:4], scales.as_strided((3, 2), (1, 4), 4)), expected)


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_the_scale_is_two_to_the_k_where_the_largest_magnitude_is_that_times_the_formats(dtype: torch.dtype) -> None:
    exponents = torch.arange(-110, 100)
    largest = torch.finfo(dtype).max
    x = torch.zeros(len(exponents), 32)
    x[:, 0] = torch.ldexp(torch.full((len(exponents),), largest), exponents)
    x[::2, 0] = torch.nextafter(x[::2, 0], torch.tensor(float("inf")))
    _, scale = ops.group_fp8_quant(x.to(DEVICE), 32, power_of_two=True, dtype=dtype)
    above = (torch.arange(len(exponents)) % 2 == 0).int()
    assert torch.equal(scale.flatten().cpu(), torch.ldexp(torch.ones(len(exponents)), exponents + above))


@any_way
def test_zeros_and_tiny_groups_have_one_least_scale(column_major: bool, power_of_two: bool) -> None:
    x = torch.tensor([[0.0] * 32 + [1e-45] * 32 + [-1e-38] * 32]).to(DEVICE)
    q, scale = ops.group_fp8_quant(x, 32, column_major, power_of_two)
    assert scale.tolist() == [[2.0**-126] * 3]
    assert not q[:, :32].float().any()


def test_nan_and_infinity_stay_in_their_own_element() -> None:
    x = randn(1, 128)
    spoiled = x.clone()
    spoiled[0, 3], spoiled[0, 77] = float("nan"), float("-inf")
    kept = x.clone()
    kept[0, [3, 77]] = 0
    (q, scale), (expected, expected_scale) = ops.group_fp8_quant(spoiled), ops.group_fp8_quant(kept)
    assert torch.equal(scale, expected_scale)
    assert q[0, 3].float().isnan()
    assert float(q[0, 77]) == -448
    others = [i for i in range(128) if i not in (3, 77)]
    assert torch.equal(q[0, others].view(torch.uint8), expected[0, others].view(torch.uint8))


@pytest.mark.parametrize("shape", [(3, 5), (0, 5), (3, 0), (2, 3, 9, 33), (70, 129), (1, 1)])
@pytest.mark.parametrize("block", [(64, 128), (4, 16), (1, 64)])
@pytest.mark.parametrize("power_of_two", [False, True])
def test_blocks_have_the_codes_and_scales_of_the_reference_and_are_decoded(
    shape: tuple[int, ...], block: tuple[int, int], power_of_two: bool
) -> None:
    w = randn(*shape)
    found = ops.block_fp8_quant(w, block, power_of_two)
    assert_same(found, reference.block_fp8_quant(w, block, power_of_two))
    for dtype in hostile.FLOATS:
        decoded = ops.dequantize_blocks(*found, block, dtype)
        assert decoded.dtype == dtype
        assert torch.equal(decoded, reference.dequantize_blocks(*found, block).float().to(dtype))


def test_groups_in_columns_are_decoded() -> None:
    q, scale = ops.group_fp8_quant(randn(5, 300), column_major=True)
    expected = reference.dequantize_blocks(q, scale, (1, 128)).float()
    assert torch.equal(ops.dequantize_blocks(q, scale, (1, 128), torch.float32), expected)


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="group_size is one of 32, 64, 128; found 48"):
        ops.group_fp8_quant(randn(2, 96), 48)
    with pytest.raises(ValueError, match="a block is two positive sizes"):
        ops.block_fp8_quant(randn(2, 96), (0, 128))
    with pytest.raises(ValueError, match=r"are \[1, 1\], found \[1, 2\]"):
        ops.dequantize_blocks(randn(2, 96).to(E4M3), torch.ones(1, 2).to(DEVICE))


@pytest.mark.gpu
@pytest.mark.parametrize("implementation", ["torch", "triton"])
def test_rows_of_more_groups_than_a_program_takes(implementation: str) -> None:
    x = torch.randn(3, 4130, generator=torch.Generator().manual_seed(0)).bfloat16()
    with dispatch.force(implementation):
        codes, scale = (each.cpu() for each in ops.group_fp8_quant(x.to(DEVICE), 32))
    expected, expected_scale = reference.group_fp8_quant(x, 32)
    assert torch.equal(scale, expected_scale)
    assert torch.equal(codes.view(torch.uint8), expected.view(torch.uint8))
