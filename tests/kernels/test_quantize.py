"""Encoding to 8 bits and back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from policyquant.kernels import dispatch, reference
from tests.kernels.device import DEVICE, OnDevice, on_device

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
ONE = torch.ones(1)
ops = OnDevice()

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", params=["torch", "triton", "cuda"], autouse=True)
def implementation(request: pytest.FixtureRequest) -> Iterator[None]:
    """Everything here runs by each, and each gives the same codes."""
    with dispatch.force(request.param):
        yield


@pytest.mark.parametrize("dtype", FP8)
def test_every_bfloat16_encodes_to_the_nearest_value(dtype: torch.dtype) -> None:
    x = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    codes = ops.static_scaled_fp8_quant(x, ONE, dtype)
    expected = reference.decode(reference.encode_fp8(x, dtype))
    torch.testing.assert_close(codes.double(), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", FP8)
def test_every_finite_code_survives_a_round_trip(dtype: torch.dtype) -> None:
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype)
    codes = codes.view(torch.uint8)[codes.float().isfinite()].view(dtype)
    again = ops.static_scaled_fp8_quant(ops.dequantize(codes, ONE, torch.float32), ONE, dtype)
    assert torch.equal(again.view(torch.uint8), codes.view(torch.uint8))


@pytest.mark.parametrize("dtype", FP8)
@pytest.mark.parametrize("to", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", ["in order", "rows apart", "turned"])
def test_every_code_decodes_the_same_among_many(layout: str, to: torch.dtype, dtype: torch.dtype) -> None:
    few = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    many = few.repeat(32, 1)
    codes = {"in order": many, "rows apart": few.repeat(32, 2)[:, :256], "turned": many.T}[layout].view(dtype)
    scale = torch.tensor([0.3])
    expected = ops.dequantize(few.view(dtype), scale, to).repeat(32, 1)
    found = ops.dequantize(codes, scale, to)
    torch.testing.assert_close(
        found, expected.T.contiguous() if layout == "turned" else expected, rtol=0, atol=0, equal_nan=True
    )
    assert ops.dequantize(codes, scale[:, None, None], to).shape == (1, *codes.shape)


@pytest.mark.parametrize("dtype", FP8)
def test_scales_come_from_the_finite_elements_of_each_row(dtype: torch.dtype) -> None:
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([[0.0, 0, 0], [nan, 2, -4], [inf, -inf, 1], [nan, nan, inf], [1e-45, 0, 0], [3e38, 1, 0]])
    q, scale = ops.per_token_scaled_fp8_quant(x, dtype=dtype)
    largest = torch.finfo(dtype).max
    smallest = torch.finfo(torch.float32).tiny
    amax = torch.tensor([0.0, 4, 1, 0, 0, 3e38])
    assert torch.equal(scale.flatten(), (amax / largest).clamp(min=smallest))
    assert q[0].float().tolist() == [0, 0, 0]
    assert q[1].float().isnan().tolist() == [True, False, False]
    assert q[2].float()[:2].tolist() == [largest, -largest]


def test_the_scale_of_a_tensor_can_be_bounded() -> None:
    x = torch.tensor([[448.0, -896.0], [1.0, 0.0]])
    q, scale = ops.dynamic_scaled_fp8_quant(x, scale_ub=1.0)
    assert scale.tolist() == [1.0]
    assert q.float().tolist() == [[448, -448], [1, 0]]
    assert ops.dynamic_scaled_fp8_quant(x)[1].tolist() == [2.0]


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (2, 1), (2, 3, 5)])
def test_empty_and_ragged_shapes(shape: tuple[int, ...]) -> None:
    q, scale = ops.per_token_scaled_fp8_quant(torch.ones(shape))
    assert q.shape == shape
    assert scale.shape == (*shape[:-1], 1)
    assert bool((scale > 0).all())


def test_strided_input_gives_the_codes_of_its_copy() -> None:
    x = torch.randn(6, 10, generator=torch.Generator().manual_seed(0)).T[::2]
    q, scale = ops.per_token_scaled_fp8_quant(x)
    expected, expected_scale = ops.per_token_scaled_fp8_quant(x.contiguous())
    assert q.is_contiguous()
    assert torch.equal(q.float(), expected.float())
    assert torch.equal(scale, expected_scale)


def test_int8_is_within_half_a_step() -> None:
    w = torch.randn(5, 33, generator=torch.Generator().manual_seed(0))
    q, scale = ops.per_channel_int8_quant(w)
    assert torch.equal(scale, w.abs().amax(-1, keepdim=True) / 127.5)
    assert int(q.min()) == -128
    # Half a step, and the rounding of a float32 quotient near 127.
    assert bool(((q.double() * scale - w.double()).abs() <= scale.double() * (0.5 + 128 * 2**-23)).all())


def test_int8_of_a_zero_row_is_zero() -> None:
    q, scale = ops.per_channel_int8_quant(torch.zeros(2, 3))
    assert q.tolist() == [[0, 0, 0]] * 2
    assert bool((scale > 0).all())


def test_out_overload_takes_its_dtype_from_out() -> None:
    x = torch.tensor([[1.0, 70000.0]])
    out, scale = torch.empty(1, 2, dtype=torch.float8_e5m2), torch.empty(1, 1)
    operator = torch.ops.policyquant.per_token_scaled_fp8_quant.out
    assert on_device(operator, x, None, out=out, out_scale=scale) is None
    expected, expected_scale = ops.per_token_scaled_fp8_quant(x, dtype=torch.float8_e5m2)
    assert torch.equal(out.float(), expected.float())
    assert torch.equal(scale, expected_scale)


@pytest.mark.parametrize("scale", [0.0, -1.0, 1e-40, 2.0**-126])
def test_a_static_scale_is_at_least_the_smallest_normal_number(scale: float) -> None:
    x = torch.tensor([0.0, -0.0, 1.0, -5.0, float("nan"), 2.0**-126, 1e-45])
    codes = ops.static_scaled_fp8_quant(x, torch.tensor([scale])).float()
    expected = torch.tensor([0.0, -0.0, 448.0, -448.0, float("nan"), 1.0, 0.0])
    torch.testing.assert_close(codes, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("how", ["static", "tensor", "token"])
@pytest.mark.parametrize("padded_rows", [None, 2, 3, 5])
def test_rows_that_pad_are_zeros_with_the_scale_of_zeros(how: str, padded_rows: int | None) -> None:
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    arguments = {"scale": ONE} if how == "static" else {"per_token": how == "token", "scale_ub": 0.003}
    q, scale = ops.scaled_fp8_quant(x, padded_rows=padded_rows, **arguments)
    expected, expected_scale = reference.scaled_fp8_quant(x, padded_rows=padded_rows, **arguments)
    assert q.shape == (max(3, padded_rows or 0), 5)
    assert torch.equal(q.view(torch.uint8), expected.view(torch.uint8))
    assert torch.equal(scale, expected_scale)
    if how == "token":
        assert scale[3:].flatten().tolist() == [2.0**-126] * (len(q) - 3)


def test_a_scale_cannot_be_given_and_asked_for() -> None:
    with pytest.raises(ValueError, match="a static scale is given"):
        ops.scaled_fp8_quant(torch.ones(2, 2), ONE, per_token=True)
    with pytest.raises(ValueError, match=r"rows are added to \[M, K\], found \[2\]"):
        ops.scaled_fp8_quant(torch.ones(2), padded_rows=4)


@pytest.mark.parametrize("operator", ["dynamic_scaled_fp8_quant", "per_token_scaled_fp8_quant"])
def test_results_are_new_each_time_and_neighbours_are_not_written(operator: str) -> None:
    """As a CUDA graph replays it: the same memory, other numbers, smaller ones the second time."""
    x = torch.randn(3, 70, generator=torch.Generator().manual_seed(0))
    codes, scales = torch.full((5, 70), 0x55, dtype=torch.uint8), torch.full((5,), -1.0)
    own = scales[1:2] if operator.startswith("dynamic") else scales[1:4].reshape(3, 1)
    packet = getattr(torch.ops.policyquant, operator)
    for values in (x, x / 1000):
        on_device(packet.out, values, None, out=codes[1:4].view(FP8[0]), out_scale=own)
        expected, expected_scale = getattr(reference, operator)(values)
        assert torch.equal(codes[1:4], expected.view(torch.uint8))
        assert torch.equal(own, expected_scale)
    assert bool((codes[[0, 4]] == 0x55).all())
    assert scales[0] == scales[4] == -1


@pytest.mark.parametrize("operator", ["per_token_scaled_fp8_quant", "static_scaled_fp8_quant", "group_fp8_quant"])
def test_elements_beyond_two_to_the_31st_are_reached(operator: str) -> None:
    """Three rows of a tensor of 4 GiB, whose other pages are never touched."""
    pitch = 2**30 + 64
    base = torch.empty(2 * pitch + 128, dtype=torch.bfloat16)
    x = base.as_strided((3, 128), (pitch, 1))
    x.copy_(torch.randn(3, 128, generator=torch.Generator().manual_seed(0)))
    arguments = (ONE,) if operator.startswith("static") else ()
    found, expected = getattr(ops, operator)(x, *arguments), getattr(reference, operator)(x, *arguments)
    for each, wanted in zip(found, expected, strict=True) if isinstance(found, tuple) else [(found, expected)]:
        assert torch.equal(each.float(), wanted.float())


def test_many_dimensions_that_no_stride_leads_through_are_encoded() -> None:
    x = torch.randn(3, 4, 2, 3, 5, generator=torch.Generator().manual_seed(0)).permute(2, 0, 4, 1, 3)[..., ::2]
    for operator in (ops.dynamic_scaled_fp8_quant, ops.per_token_scaled_fp8_quant):
        q, scale = operator(x)
        expected, expected_scale = operator(x.contiguous())
        assert torch.equal(q.float(), expected.float())
        assert torch.equal(scale, expected_scale)


@pytest.mark.parametrize("shape", [(1,), (6, 1), (1, 7), (6, 7), (5, 1, 1)])
def test_codes_are_decoded_with_scales_of_any_shape_that_broadcasts(shape: tuple[int, ...]) -> None:
    q = torch.randn(6, 7, generator=torch.Generator().manual_seed(0)).to(FP8[0])
    scale = torch.rand(shape, generator=torch.Generator().manual_seed(1))
    assert torch.equal(ops.dequantize(q, scale, torch.float32), reference.dequantize(q, scale).float())


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(2, 40000), (300, 700)], ids=["long rows", "many tiles"])
@pytest.mark.parametrize("at", [0, -1], ids=["first", "last"])
@pytest.mark.parametrize("implementation", ["torch", "triton"])
def test_the_largest_is_found_wherever_it_stands(implementation: str, at: int, shape: tuple[int, int]) -> None:
    x = torch.ones(shape, dtype=torch.bfloat16, device=DEVICE)
    x.view(-1)[at] = 100.0
    with dispatch.force(implementation):
        assert ops.dynamic_scaled_fp8_quant(x)[1].tolist() == [torch.tensor(100.0).div(448).item()]
        scale = ops.per_token_scaled_fp8_quant(x)[1].flatten().tolist()
        groups = ops.group_fp8_quant(x, 32)[1].flatten().tolist()
    one, hundred = torch.tensor([1.0, 100.0]).div(448).tolist()
    assert [scale[at], scale[1 + at]] == [hundred, one]
    assert groups.count(hundred) == 1
    assert groups[at] == hundred
