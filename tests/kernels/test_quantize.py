"""Encoding to 8 bits and back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from policyquant.kernels import dispatch, ops, reference

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
ONE = torch.ones(1)

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", params=["torch", "triton"], autouse=True)
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
    assert torch.ops.policyquant.per_token_scaled_fp8_quant.out(x, None, out=out, out_scale=scale) is None
    expected, expected_scale = ops.per_token_scaled_fp8_quant(x, dtype=torch.float8_e5m2)
    assert torch.equal(out.float(), expected.float())
    assert torch.equal(scale, expected_scale)
