"""MX and NVFP4: codes and scales are those of the reference to the bit, and what is decoded is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from policyquant.kernels import dispatch, ops, reference
from tests.kernels import hostile
from tests.kernels.device import DEVICE

E4M3, E8M0 = torch.float8_e4m3fn, torch.float8_e8m0fnu
MODES = ("floor", "rceil", "even")
MX = ("mxfp8_quant", "mxfp4_quant")
NAN, INFINITY = float("nan"), float("inf")
pytestmark = pytest.mark.gpu


@pytest.fixture(params=["torch", "triton"], autouse=True)
def implementation(request: pytest.FixtureRequest) -> Iterator[str]:
    with dispatch.force(request.param):
        yield request.param


def moved(x: Any) -> Any:
    """The tensor on the device under test, with its strides, its offset and what lies beside it."""
    if not isinstance(x, torch.Tensor):
        return x
    storage = x.as_strided((x.untyped_storage().nbytes() // x.itemsize,), (1,), 0)
    return storage.to(DEVICE).as_strided(x.shape, x.stride(), x.storage_offset())


def on_device(operator: str, *inputs: Any) -> Any:
    made = getattr(ops, operator)(*(moved(each) for each in inputs))
    return tuple(each.cpu() for each in made) if isinstance(made, tuple) else made.cpu()


def assert_same(found: tuple[torch.Tensor, ...], wanted: tuple[torch.Tensor, ...]) -> None:
    """Byte by byte; a NaN may have any sign."""
    for ours, theirs in zip(found, wanted, strict=True):
        assert (ours.dtype, ours.shape, ours.is_contiguous()) == (theirs.dtype, theirs.shape, True)
        equal = ours.contiguous().view(torch.uint8) == theirs.contiguous().view(torch.uint8)
        if theirs.dtype == E4M3:
            equal |= ours.float().isnan() & theirs.float().isnan()
        assert bool(equal.all())


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def even_columns(x: torch.Tensor) -> torch.Tensor:
    return x[:, : x.shape[1] // 2 * 2]


@pytest.mark.parametrize("scaling_mode", MODES)
@pytest.mark.parametrize("operator", MX)
@pytest.mark.parametrize("shape", [(3, 4), (1, 2), (0, 64), (3, 0), (5, 70), (2, 3, 96), (70, 34), (64,)])
def test_mx_codes_and_scales_are_those_of_the_reference(
    operator: str, scaling_mode: str, shape: tuple[int, ...]
) -> None:
    for dtype in hostile.FLOATS:
        x = drawn(*shape, dtype=dtype)
        assert_same(on_device(operator, x, scaling_mode), getattr(reference, operator)(x, scaling_mode))


@pytest.mark.parametrize("shape", [(3, 4), (1, 2), (0, 64), (3, 0), (5, 70), (2, 3, 96), (70, 34), (64,)])
def test_nvfp4_codes_and_scales_are_those_of_the_reference(shape: tuple[int, ...]) -> None:
    for dtype in hostile.FLOATS:
        x = drawn(*shape, dtype=dtype)
        assert_same(on_device("nvfp4_quant", x), reference.nvfp4_quant(x))


@pytest.mark.parametrize("columns", [1, 33, 95])
def test_mxfp8_takes_an_odd_number_of_columns(columns: int) -> None:
    x = drawn(3, columns)
    assert_same(on_device("mxfp8_quant", x), reference.mxfp8_quant(x))


@settings(max_examples=15)
@given(x=hostile.tensors(at_least=2), scaling_mode=st.sampled_from(MODES), scale=hostile.scale_values)
def test_hostile_values_and_layouts(x: torch.Tensor, scaling_mode: str, scale: float) -> None:
    assert_same(on_device("mxfp8_quant", x, scaling_mode), reference.mxfp8_quant(x, scaling_mode))
    x, one = even_columns(x), torch.tensor([scale])
    assert_same(on_device("mxfp4_quant", x, scaling_mode), reference.mxfp4_quant(x, scaling_mode))
    assert_same(on_device("nvfp4_quant", x, one), reference.nvfp4_quant(x, one))
    assert_same(on_device("nvfp4_quant", x), reference.nvfp4_quant(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_half_is_encoded_as_the_nearest_value(dtype: torch.dtype) -> None:
    """All 65,536, in blocks whose scale is 1: of a 4 or a 256 that stands first."""
    every = torch.arange(2**16).to(torch.uint16).view(dtype)
    for operator, first in (("mxfp4_quant", 4.0), ("mxfp8_quant", 256.0)):
        within = every[(every.abs() < 2 * first) | every.isnan()]
        if operator == "mxfp4_quant":
            within = within[~within.isnan()]
        x = torch.full((-(-len(within) // 31) * 32,), first, dtype=dtype)
        x.view(-1, 32)[:, 1:] = torch.cat((within, within.new_zeros(-len(within) % 31))).view(-1, 31)
        codes, scale = on_device(operator, x)
        assert set(scale.view(torch.uint8).tolist()) == {127}
        exact = reference.decode_elements(codes)
        if operator == "mxfp8_quant":
            assert_same((codes,), (reference.encode_fp8(x, E4M3),))
        else:
            values = torch.tensor(reference.FP4_VALUES, dtype=torch.float64)
            nearest = (x.double().abs()[:, None] - values).abs().amin(-1)
            assert torch.equal((exact - x.double()).abs(), nearest)
            assert torch.equal(exact.signbit(), x.signbit())


def test_ties_go_to_the_even_code_and_what_is_too_large_saturates() -> None:
    values = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.99, -0.25, -0.75, -5.0, -0.0, 0.2501, 0.0, 4.0, -7.0]
    expected = [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0, -0.0, -1.0, -4.0, -0.0, 0.5, 0.0, 4.0, -6.0]
    codes, scale = on_device("mxfp4_quant", torch.tensor(values))
    assert scale.float().tolist() == [1.0]
    assert str(reference.decode_elements(codes).tolist()) == str(expected)


def test_the_first_code_lies_in_the_low_half_of_a_byte() -> None:
    codes, _ = on_device("mxfp4_quant", torch.tensor([4.0, -1.0, 0.5, 6.0]))
    assert codes.tolist() == [0xA6, 0x71]


@pytest.mark.parametrize(
    ("operator", "scaling_mode", "largest", "exponent"),
    [
        ("mxfp4_quant", "floor", 6.0, 0),
        ("mxfp4_quant", "floor", 7.99, 0),
        ("mxfp4_quant", "floor", 8.0, 1),
        ("mxfp4_quant", "even", 6.99, 0),
        ("mxfp4_quant", "even", 7.0, 1),
        ("mxfp4_quant", "rceil", 6.0, 0),
        ("mxfp4_quant", "rceil", 6.0000005, 1),
        ("mxfp4_quant", "rceil", 3.0000002, 0),
        ("mxfp8_quant", "floor", 511.0, 0),
        ("mxfp8_quant", "even", 495.0, 0),
        ("mxfp8_quant", "even", 496.0, 1),
        ("mxfp8_quant", "rceil", 448.0, 0),
        ("mxfp8_quant", "rceil", 448.00003, 1),
        ("mxfp8_quant", "floor", 3.4028234e38, 119),
        ("mxfp8_quant", "rceil", 3.4028234e38, 120),
        ("mxfp4_quant", "even", 3.4028234e38, 126),
        ("mxfp4_quant", "floor", 1e-45, -127),
        ("mxfp8_quant", "rceil", 2.0**-119, -127),
        ("mxfp8_quant", "floor", 2.0**-118, -126),
    ],
)
def test_the_rule_for_the_scale_decides_what_saturates(
    operator: str, scaling_mode: str, largest: float, exponent: int
) -> None:
    _, scale = on_device(operator, torch.tensor([0.0, -largest]), scaling_mode)
    assert scale.view(torch.uint8).tolist() == [exponent + 127]


@pytest.mark.parametrize("operator", MX)
def test_zeros_have_the_least_scale(operator: str) -> None:
    codes, scale = on_device(operator, torch.zeros(2, 40))
    assert scale.view(torch.uint8).tolist() == [[0, 0]] * 2
    assert not codes.view(torch.uint8).any()


def test_zeros_have_the_scale_one_in_nvfp4_and_small_blocks_the_least() -> None:
    x = torch.zeros(48)
    x[16], x[32] = 1e-6, 2688.0
    codes, scale, one = on_device("nvfp4_quant", x)
    assert scale.float().tolist() == [1.0, 2.0**-9, 448.0]
    assert one.tolist() == [1.0]
    assert not codes[:8].any()
    assert on_device("nvfp4_quant", torch.zeros(32))[2].tolist() == [2.0**-126]


def test_a_nan_stays_in_its_element_in_fp8_and_in_its_block_in_fp4() -> None:
    x = drawn(1, 96)
    x[0, 40], x[0, 70] = NAN, -INFINITY
    fp8, fp4, nv = (
        on_device("mx_dequantize", *on_device("mxfp8_quant", x), torch.float32),
        on_device("mx_dequantize", *on_device("mxfp4_quant", x), torch.float32),
        on_device("nvfp4_dequantize", *on_device("nvfp4_quant", x), torch.float32),
    )
    assert fp8.isnan().nonzero().tolist() == [[0, 40]]
    assert fp4.isnan().nonzero()[:, 1].tolist() == list(range(32, 64))
    assert nv.isnan().nonzero()[:, 1].tolist() == list(range(32, 48))
    for y in (fp8, fp4, nv):
        assert y[0, 70] == -y[0, 64:].abs().max()
        assert not y.isinf().any()


def test_blocks_without_a_finite_element_have_a_finite_scale_unless_one_is_nan() -> None:
    x = torch.tensor([[INFINITY, -INFINITY] * 16, [NAN, INFINITY] * 16])
    assert on_device("mxfp8_quant", x)[1].view(torch.uint8).tolist() == [[0], [0]]
    assert on_device("mxfp4_quant", x)[1].view(torch.uint8).tolist() == [[0], [255]]
    assert on_device("nvfp4_quant", x)[1].view(torch.uint8).tolist() == [[0x38, 0x38], [0x7F, 0x7F]]


@pytest.mark.parametrize("largest", [7.0, 448.0 * 6 * 0.5])
def test_a_global_scale_that_is_given_is_used(largest: float) -> None:
    x, one = drawn(4, 64), torch.tensor([largest / 2688.0])
    x[1] = 0.0
    assert_same(on_device("nvfp4_quant", x, one), reference.nvfp4_quant(x, one))
    assert_same(on_device("nvfp4_quant", x, torch.zeros(1)), reference.nvfp4_quant(x, torch.zeros(1)))


@pytest.mark.parametrize("dtype", hostile.FLOATS)
def test_all_codes_are_decoded_with_all_scales(dtype: torch.dtype) -> None:
    """Each of 256 bytes of two E2M1 codes, and of E4M3's, beside each of 256 scales; rounded once."""
    every = torch.arange(256).to(torch.uint8)
    fp4, fp8 = every.repeat(256).view(256, 256), every.view(E4M3).view(torch.uint8).repeat(256).view(256, 256)
    mx = every[:, None].expand(256, 16).contiguous()
    for q, scale in ((fp4, mx.view(E8M0)), (fp8.view(E4M3), mx[:, :8].view(E8M0)), (fp4, mx)):
        expected = reference.mx_dequantize(q, scale).float().to(dtype)
        found = on_device("mx_dequantize", q, scale, dtype)
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    nv = every[:, None].expand(256, 32).contiguous().view(E4M3)
    for one in (torch.tensor([0.37]), torch.tensor([2.0**-126])):
        expected = reference.nvfp4_dequantize(fp4, nv, one).float().to(dtype)
        found = on_device("nvfp4_dequantize", fp4, nv, one, dtype)
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("columns", [2, 34, 70, 96])
def test_last_blocks_that_are_shorter_are_decoded(columns: int) -> None:
    x = drawn(2, 3, columns)
    for operator, decode in (
        ("mxfp8_quant", "mx_dequantize"),
        ("mxfp4_quant", "mx_dequantize"),
        ("nvfp4_quant", "nvfp4_dequantize"),
    ):
        stored = getattr(reference, operator)(x)
        expected = getattr(reference, decode)(*stored).float()
        assert torch.equal(on_device(decode, *stored, torch.float32), expected)


@pytest.mark.parametrize("layout", hostile.LAYOUTS)
def test_codes_and_scales_may_have_any_layout(layout: str) -> None:
    for operator, decode in (("mxfp8_quant", "mx_dequantize"), ("nvfp4_quant", "nvfp4_dequantize")):
        codes, scale, *one = getattr(reference, operator)(drawn(5, 96))
        expected = getattr(reference, decode)(codes, scale, *one).float()
        laid = (hostile.laid_out(codes, layout), hostile.laid_out(scale, layout))
        assert torch.equal(on_device(decode, *laid, *one, torch.float32), expected)


def test_nothing_is_written_beside_the_results() -> None:
    x = drawn(3, 70).to(DEVICE)
    for operator, width, scales, extra in (
        ("mxfp8_quant", 70, 3, ("floor",)),
        ("mxfp4_quant", 35, 3, ("floor",)),
        ("nvfp4_quant", 35, 5, (torch.ones(1, device=DEVICE),)),
    ):
        codes = torch.full((5, width), 0x55, dtype=torch.uint8, device=DEVICE)
        scale = torch.full((5, scales), 0x55, dtype=torch.uint8, device=DEVICE)
        kinds = (E4M3 if width == 70 else torch.uint8, E4M3 if scales == 5 else E8M0)
        packet = getattr(torch.ops.policyquant, operator)
        packet.out(x, *extra, out=codes.view(kinds[0])[1:4], out_scale=scale.view(kinds[1])[1:4])
        assert bool((codes[[0, 4]] == 0x55).all())
        assert bool((scale[[0, 4]] == 0x55).all())
        wanted = getattr(reference, operator)(x.cpu(), *(moved(each) for each in extra))
        assert_same((codes.cpu().view(kinds[0])[1:4], scale.cpu().view(kinds[1])[1:4]), wanted[:2])


def test_what_does_not_fit_is_refused() -> None:
    x = drawn(2, 33).to(DEVICE)
    one = torch.ones(1, device=DEVICE)
    with pytest.raises(ValueError, match="scaling_mode is one of floor, even, rceil; found 'ceil'"):
        ops.mxfp8_quant(x, "ceil")
    with pytest.raises(ValueError, match="two in a byte, so K is even; found 33"):
        ops.mxfp4_quant(x)
    with pytest.raises(ValueError, match="two in a byte, so K is even; found 33"):
        ops.nvfp4_quant(x, one)
    with pytest.raises(ValueError, match=r"the global scale is \[1\] torch.float32, found \[2\]"):
        ops.nvfp4_quant(x[:, :32], torch.ones(2, device=DEVICE))
    codes, scale = ops.mxfp8_quant(x)
    with pytest.raises(ValueError, match=r"codes are torch.float32, expected torch.float8_e4m3fn or torch.uint8"):
        ops.mx_dequantize(x, scale)
    with pytest.raises(ValueError, match=r"are \[2, 2\] torch.float8_e8m0fnu or torch.uint8, found \[2, 1\]"):
        ops.mx_dequantize(codes, scale[:, :1])
    with pytest.raises(ValueError, match=r"codes are torch.float8_e4m3fn, expected torch.uint8"):
        ops.nvfp4_dequantize(codes, scale, one)
