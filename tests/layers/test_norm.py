"""RMSNorm has the arithmetic of transformers, adds residuals, and emits what the plan says."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from policyquant.kernels import ops  # noqa: E402
from policyquant.layers.norm import RMSNorm  # noqa: E402
from policyquant.policy.scheme import Quantization, Scheme  # noqa: E402
from policyquant.quantized_tensor import QuantizedTensor  # noqa: E402


def norm_of(size: int, dtype: torch.dtype) -> RMSNorm:
    norm = RMSNorm(size, eps=1e-5, dtype=dtype)
    with torch.no_grad():
        norm.weight.copy_(torch.randn(size))
    return norm


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rows_are_scaled_to_a_mean_square_of_one_and_then_weighted(dtype: torch.dtype) -> None:
    norm, x = norm_of(64, dtype), torch.randn(3, 5, 64, dtype=dtype)
    exact = x.double() / (x.double().pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight.double()
    y = norm(x)
    assert y.dtype == dtype
    # One rounding after normalizing, one after weighting.
    assert ((y.double() - exact).abs() <= 2.1 * torch.finfo(dtype).eps * exact.abs() + 1e-6).all()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_it_is_the_norm_of_transformers_to_the_bit(dtype: torch.dtype) -> None:
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    ours = norm_of(64, dtype)
    theirs = LlamaRMSNorm(64, eps=1e-5).to(dtype)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(3, 5, 64, dtype=dtype)
    assert torch.equal(ours(x), theirs(x))


def test_a_residual_is_added_first_and_handed_on() -> None:
    norm = norm_of(8, torch.bfloat16)
    x, residual = torch.randn(2, 8, dtype=torch.bfloat16), torch.randn(2, 8, dtype=torch.bfloat16)
    y, new_residual = norm(x, residual)
    assert torch.equal(new_residual, x + residual)
    assert torch.equal(y, norm(x + residual))


def test_a_row_of_zeros_stays_zero() -> None:
    assert torch.equal(norm_of(8, torch.float32)(torch.zeros(2, 8)), torch.zeros(2, 8))


def test_a_new_norm_has_a_weight_of_ones_and_no_other_tensor() -> None:
    state = RMSNorm(8).state_dict()
    assert list(state) == ["weight"]
    assert torch.equal(state["weight"], torch.ones(8))


def test_with_output_fp8_codes_are_emitted_and_the_residual_stays_plain() -> None:
    norm = norm_of(8, torch.bfloat16)
    x, residual = torch.randn(2, 8, dtype=torch.bfloat16), torch.randn(2, 8, dtype=torch.bfloat16)
    plain, _ = norm(x, residual)
    norm.take_scheme(Scheme("none", output=Quantization("float8_e4m3fn", "token", scheme="dynamic")))
    emitted, new_residual = norm(x, residual)
    data, scale = ops.per_token_scaled_fp8_quant(plain)
    assert isinstance(emitted, QuantizedTensor)
    assert torch.equal(emitted.data.view(torch.uint8), data.view(torch.uint8))
    assert torch.equal(emitted.scale, scale)
    assert torch.equal(new_residual, x + residual)


def test_with_a_plain_output_the_dtype_is_converted() -> None:
    norm = norm_of(8, torch.float32)
    x = torch.randn(2, 8)
    plain = norm(x)
    norm.take_scheme(Scheme("none", output="bfloat16"))
    assert torch.equal(norm(x), plain.to(torch.bfloat16))
