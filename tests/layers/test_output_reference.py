"""A layer that emits FP8 is its unquantized self and the reference quantization of that, to the bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings

from policyquant.kernels import reference
from policyquant.layers.activation import GeluAndMul, SiluAndMul
from policyquant.layers.norm import RMSNorm
from policyquant.policy.scheme import Quantization, Scheme
from policyquant.quantized_tensor import QuantizedTensor
from tests.kernels import hostile

LAYERS: Mapping[str, tuple[Callable[[int, torch.dtype], Any], Callable[[torch.Tensor], tuple[torch.Tensor, ...]]]] = {
    "silu_and_mul": (lambda _, dtype: SiluAndMul(), lambda x: (torch.cat((x, x.flip(-1)), dim=-1),)),
    "gelu_and_mul": (lambda _, dtype: GeluAndMul("tanh"), lambda x: (torch.cat((x, x.flip(-1)), dim=-1),)),
    "rms_norm": (lambda size, dtype: RMSNorm(size, dtype=dtype), lambda x: (x,)),
    "rms_norm after a residual": (lambda size, dtype: RMSNorm(size, dtype=dtype), lambda x: (x, x.flip(-1))),
}
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
OUTPUTS = {
    "per token": Quantization("float8_e4m3fn", "token", scheme="dynamic"),
    "per token, bounded": Quantization("float8_e4m3fn", "token", scheme="dynamic", scale_ub=0.01),
    "per tensor": Quantization("float8_e5m2", "tensor", scheme="dynamic"),
    "static": Quantization("float8_e4m3fn", "tensor", scheme="static", scale=0.125),
}


def by_reference(x: torch.Tensor, output: Quantization) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = {"float8_e4m3fn": E4M3, "float8_e5m2": E5M2}[output.dtype]
    if output.scheme == "static":
        scale = torch.tensor([output.scale])
        return reference.static_scaled_fp8_quant(x, scale, dtype), scale
    if output.granularity == "token":
        return reference.per_token_scaled_fp8_quant(x, output.scale_ub, dtype)
    return reference.dynamic_scaled_fp8_quant(x, output.scale_ub, dtype)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("output", OUTPUTS.values(), ids=list(OUTPUTS))
@given(x=hostile.tensors(at_least=1))
@settings(max_examples=25)
def test_the_codes_are_those_of_the_unquantized_result(name: str, output: Quantization, x: torch.Tensor) -> None:
    make, inputs = LAYERS[name]
    with torch.no_grad():
        layer = make(x.shape[-1], x.dtype)
        plain = layer(*inputs(x))
        layer.take_scheme(Scheme("none", output=output))
        emitted = layer(*inputs(x))
    if isinstance(plain, tuple):
        torch.testing.assert_close(emitted[1], plain[1], rtol=0, atol=0, equal_nan=True)
        plain, emitted = plain[0], emitted[0]
    assert isinstance(emitted, QuantizedTensor)
    codes, scale = by_reference(plain, output)
    assert torch.equal(emitted.scale, scale)
    values, expected = reference.decode(emitted.data), reference.decode(codes)
    torch.testing.assert_close(values, expected, rtol=0, atol=0, equal_nan=True)
