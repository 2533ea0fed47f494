"""Activations and norms that encode what they return: the codes of the unfused pair, by the same implementation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from policyquant.kernels import dispatch, ops, reference
from tests.kernels import hostile
from tests.kernels.device import DEVICE

EPS = 1e-6
pytestmark = pytest.mark.gpu
implementations = pytest.mark.parametrize("implementation", ["torch", "triton", "cuda"])
OUTPUTS: dict[str, dict[str, Any]] = {
    "static": {"scale": torch.tensor([0.02])},
    "per token": {},
    "per token, bounded": {"scale_ub": 0.003},
    "e5m2": {"dtype": torch.float8_e5m2},
    "groups of 128": {"group_size": 128},
    "groups of 32 in columns": {"group_size": 32, "column_major": True},
    "groups, powers of two": {"group_size": 64, "power_of_two": True},
}
outputs = pytest.mark.parametrize("output", OUTPUTS)
SHAPES = [(0, 8), (1, 1), (3, 33), (5, 128), (2, 3, 200), (4, 1024)]
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def drawn(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 3).to(dtype).to(DEVICE)


def asked_for(output: str) -> dict[str, Any]:
    asked = OUTPUTS[output]
    return {name: value.to(DEVICE) if isinstance(value, torch.Tensor) else value for name, value in asked.items()}


def quantized(y: torch.Tensor, output: str) -> tuple[torch.Tensor, torch.Tensor]:
    """y, encoded by itself."""
    asked = asked_for(output)
    if "group_size" in asked:
        return ops.group_fp8_quant(y, **asked)
    if "scale" in asked:
        return ops.static_scaled_fp8_quant(y, asked["scale"]), asked["scale"]
    return ops.per_token_scaled_fp8_quant(y, asked.get("scale_ub"), asked.get("dtype", torch.float8_e4m3fn))


def assert_same(found: tuple[torch.Tensor, torch.Tensor], expected: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Codes byte for byte, one NaN being as good as another; scales, and how they lie."""
    nan = expected[0].float().isnan()
    assert torch.equal(found[0].float().isnan(), nan)
    assert torch.equal(found[0].view(torch.uint8)[~nan], expected[0].view(torch.uint8)[~nan])
    assert torch.equal(found[1], expected[1])
    assert found[1].stride() == expected[1].stride()


@implementations
@outputs
@pytest.mark.parametrize("shape", SHAPES)
def test_silu_and_mul_is_encoded_as_what_it_returns_would_be(
    implementation: str, output: str, shape: tuple[int, ...]
) -> None:
    x = drawn(*shape[:-1], 2 * shape[-1])
    with dispatch.force(implementation):
        assert_same(ops.silu_and_mul_quant(x, **asked_for(output)), quantized(ops.silu_and_mul(x), output))


@implementations
@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gelu_and_mul_is_encoded_as_what_it_returns_would_be(
    implementation: str, approximate: str, dtype: torch.dtype
) -> None:
    x = drawn(3, 130, dtype=dtype)
    with dispatch.force(implementation):
        found = ops.gelu_and_mul_quant(x, approximate=approximate)
        assert_same(found, quantized(ops.gelu_and_mul(x, approximate), "per token"))


@implementations
@outputs
@pytest.mark.parametrize("shape", SHAPES)
def test_a_norm_is_encoded_as_what_it_returns_would_be(
    implementation: str, output: str, shape: tuple[int, ...]
) -> None:
    x, weight = drawn(*shape), drawn(shape[-1], seed=1)
    with dispatch.force(implementation):
        assert_same(
            ops.rms_norm_quant(x, weight, EPS, **asked_for(output)), quantized(ops.rms_norm(x, weight, EPS), output)
        )


@implementations
@outputs
@pytest.mark.parametrize("shape", SHAPES)
def test_a_norm_after_an_addition_is_too_and_the_sum_is_that_of_torch(
    implementation: str, output: str, shape: tuple[int, ...]
) -> None:
    x, residual, weight = drawn(*shape), drawn(*shape, seed=2), drawn(shape[-1], seed=1)
    with dispatch.force(implementation):
        codes, scale, total = ops.fused_add_rms_norm_quant(x, residual, weight, EPS, **asked_for(output))
        y, expected = ops.fused_add_rms_norm(x, residual, weight, EPS)
        assert_same((codes, scale), quantized(y, output))
    assert torch.equal(total, expected)
    assert torch.equal(total, x + residual)


@implementations
def test_elements_beyond_two_to_the_31st_are_reached(implementation: str) -> None:
    """Three rows of a tensor of 4 GiB, whose other pages are never touched."""
    pitch = 2**30 + 64
    x = torch.empty(2 * pitch + 128, dtype=torch.bfloat16, device=DEVICE).as_strided((3, 128), (pitch, 1))
    x.copy_(drawn(3, 128))
    weight = drawn(128, seed=1)
    with dispatch.force(implementation):
        assert_same(ops.silu_and_mul_quant(x), ops.silu_and_mul_quant(x.contiguous()))
        assert_same(ops.rms_norm_quant(x, weight, EPS), ops.rms_norm_quant(x.contiguous(), weight, EPS))


@implementations
def test_a_float32_weight_is_read_as_such(implementation: str) -> None:
    x, weight = drawn(3, 40), drawn(40, dtype=torch.float32, seed=1) + 1e-4
    with dispatch.force(implementation):
        y = ops.rms_norm(x, weight, EPS)
        assert_same(ops.rms_norm_quant(x, weight, EPS), quantized(y, "per token"))
    assert y.dtype == torch.float32
    normal = reference.rms_norm(x.cpu(), torch.ones(40), EPS).bfloat16().double()
    exact = normal * weight.cpu().double()
    # The normalized value may be rounded to its neighbour, by another order of the sum.
    assert bool(((y.cpu().double() - exact).abs() <= 2**-7 * exact.abs()).all())


@implementations
@settings(max_examples=15, deadline=None)
@given(x=hostile.tensors(at_least=1), seed=st.integers(0, 99))
def test_hostile_values_of_an_activation(implementation: str, x: torch.Tensor, seed: int) -> None:
    gate = torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)).to(x.dtype)
    both = torch.cat((gate, x), dim=-1).to(DEVICE)
    with dispatch.force(implementation):
        assert_same(ops.silu_and_mul_quant(both), quantized(ops.silu_and_mul(both), "per token"))


@implementations
@pytest.mark.parametrize("layout", hostile.LAYOUTS)
def test_strides_and_offsets_are_honoured(implementation: str, layout: str) -> None:
    x, weight = drawn(4, 60), drawn(60, seed=1)
    laid_out = hostile.laid_out(x.cpu(), layout).to(DEVICE) if DEVICE == "cpu" else x
    with dispatch.force(implementation):
        assert_same(ops.rms_norm_quant(laid_out, weight, EPS), ops.rms_norm_quant(x, weight, EPS))
        assert_same(ops.silu_and_mul_quant(laid_out), ops.silu_and_mul_quant(x))


@implementations
@pytest.mark.parametrize("width", [3, 16384, 20001])
def test_rows_of_any_width(implementation: str, width: int) -> None:
    x, weight = drawn(2, width), drawn(width, seed=1)
    with dispatch.force(implementation):
        y = ops.rms_norm(x, weight, EPS)
    exact = reference.rms_norm(x.cpu(), weight.cpu(), EPS)
    assert bool(((y.cpu().double() - exact).abs() <= 2**-7 * exact.abs() + 1e-6).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["silu_and_mul", "gelu_and_mul"])
def test_activations_are_near_the_reference(name: str, dtype: torch.dtype) -> None:
    x = drawn(7, 66, dtype=dtype)
    with dispatch.force("triton"):
        y = getattr(ops, name)(x)
    exact = getattr(reference, name)(x.cpu())
    assert bool(((y.cpu().double() - exact).abs() <= 4 * torch.finfo(dtype).eps * exact.abs() + 1e-6).all())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scale": torch.ones(1), "group_size": 128}, "found both"),
        ({"group_size": 128, "scale_ub": 1.0}, "scale_ub bounds the scales of rows"),
        ({"power_of_two": True}, "found no group_size"),
        ({"group_size": 48}, "found 48"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ops.silu_and_mul_quant(torch.ones(2, 8), **arguments)
    with pytest.raises(ValueError, match=message):
        ops.rms_norm_quant(torch.ones(2, 8), torch.ones(8), EPS, **arguments)


@implementations
def test_what_plain_torch_broadcasts_is_not_read_by_kernels_as_if_it_were_whole(implementation: str) -> None:
    x, weight = drawn(4, 8), drawn(8, seed=1)
    residual, scale = drawn(1, 8, seed=2), torch.tensor([0.02, 0.5] * 4, device=DEVICE)
    with dispatch.force(implementation):
        codes, _ = ops.rms_norm_quant(x, weight, EPS, scale)
        expected = ops.static_scaled_fp8_quant(ops.rms_norm(x, weight, EPS), scale)
        y, total = ops.fused_add_rms_norm(x, residual, weight, EPS)
    assert torch.equal(codes.view(torch.uint8), expected.view(torch.uint8))
    assert torch.equal(total, x + residual)
    assert torch.equal(y, ops.fused_add_rms_norm(x, residual.expand(4, 8).contiguous(), weight, EPS)[0])
