"""Gated activations compute gate and values side by side, and emit what the plan says."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402, N812

from policyquant.errors import PolicyQuantError  # noqa: E402
from policyquant.kernels import ops  # noqa: E402
from policyquant.layers.activation import GeluAndMul, SiluAndMul  # noqa: E402
from policyquant.policy.scheme import Quantization, Scheme  # noqa: E402
from policyquant.quantized_tensor import QuantizedTensor  # noqa: E402


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_silu_and_mul_is_silu_of_the_gate_times_the_values_to_the_bit(dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, 10, dtype=dtype)
    gate, up = x.chunk(2, dim=-1)
    result = SiluAndMul()(x)
    assert result.dtype == dtype
    assert torch.equal(result, F.silu(gate) * up)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_and_mul_is_gelu_of_the_gate_times_the_values_to_the_bit(approximate: str) -> None:
    x = torch.randn(2, 3, 10)
    gate, up = x.chunk(2, dim=-1)
    result = GeluAndMul(approximate)(x)
    assert torch.equal(result, F.gelu(gate, approximate=approximate) * up)


def test_an_unknown_approximation_is_refused() -> None:
    with pytest.raises(PolicyQuantError, match="'none' or 'tanh', found 'sigmoid'"):
        GeluAndMul("sigmoid")


@pytest.mark.parametrize("layer", [SiluAndMul(), GeluAndMul()])
def test_halves_of_unlike_size_are_refused(layer: torch.nn.Module) -> None:
    with pytest.raises(PolicyQuantError, match=r"found shape \[2, 7\]"):
        layer(torch.randn(2, 7))


def test_gradients_flow_through() -> None:
    x = torch.randn(2, 6, requires_grad=True)
    SiluAndMul()(x).sum().backward()
    assert x.grad is not None
    assert x.grad.abs().sum() > 0


@pytest.mark.parametrize("kind", [SiluAndMul, GeluAndMul])
def test_with_output_fp8_the_activation_emits_codes_of_exactly_its_result(
    kind: type[SiluAndMul] | type[GeluAndMul],
) -> None:
    layer = kind()
    x = torch.randn(4, 6, dtype=torch.bfloat16)
    plain = layer(x)
    layer.take_scheme(Scheme("none", output=Quantization("float8_e4m3fn", "token", scheme="dynamic")))
    emitted = layer(x)
    data, scale = ops.per_token_scaled_fp8_quant(plain)
    assert isinstance(emitted, QuantizedTensor)
    assert emitted.dtype == torch.bfloat16
    assert torch.equal(emitted.data.view(torch.uint8), data.view(torch.uint8))
    assert torch.equal(emitted.scale, scale)
