"""Under autocast a layer with a method returns the dtype of its plan, and computes what it computes outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from policyquant.layers.activation import GeluAndMul, SiluAndMul
from policyquant.layers.attention import Attention
from policyquant.layers.base import PolicyLayer
from policyquant.layers.norm import RMSNorm
from policyquant.methods.registry import method_for
from policyquant.policy.scheme import Quantization, Scheme
from policyquant.quantized_tensor import QuantizedTensor
from tests.methods.test_no_fake_quantization import LAYERS, cases, quantized, run

K = 64


@contextmanager
def autocast(depth: int = 1) -> Iterator[None]:
    """Autocast to bfloat16, within itself if `depth` is 2."""
    with ExitStack() as stack:
        for _ in range(depth):
            stack.enter_context(torch.autocast("cpu", torch.bfloat16))
        yield


def the_same(layer: Any, *inputs: Any) -> torch.Tensor:
    """What a layer returns, after making sure that it is the same to the bit under autocast and nested autocast."""
    with torch.no_grad():
        outside = layer(*inputs)
        for depth in (1, 2):
            with autocast(depth):
                inside = layer(*inputs)
            assert inside.dtype == outside.dtype
            assert torch.equal(plain(inside), plain(outside))
    return plain(outside)


def plain(y: torch.Tensor | QuantizedTensor) -> torch.Tensor:
    return y.dequantize() if isinstance(y, QuantizedTensor) else y


@pytest.mark.parametrize(("method", "form", "kind"), list(cases()))
def test_a_quantized_layer_computes_what_it_computes_outside(method: str, form: dict[str, Any], kind: str) -> None:
    layer = quantized(method, form, kind)

    def seeded() -> torch.Tensor:
        torch.manual_seed(1)
        return run(layer)

    assert the_same(seeded).dtype == torch.float32


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer_at_none_returns_the_output_dtype_of_its_plan(kind: str, dtype: str) -> None:
    layer = LAYERS[kind]()
    layer.note_method(method_for(Scheme("none", output=dtype)))
    with autocast():
        assert run(layer).dtype == getattr(torch, dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["linear", "qkv", "merged", "head", "experts"])
def test_a_quantized_layer_returns_the_output_dtype_of_its_plan(kind: str, dtype: str) -> None:
    layer = quantized("fp8", {}, kind)
    scheme = layer.scheme
    layer.note_method(method_for(Scheme("fp8", scheme.weight, scheme.input, output=dtype)))
    with autocast():
        assert run(layer).dtype == getattr(torch, dtype)


@pytest.mark.parametrize("kind", ["linear", "qkv", "merged", "head"])
def test_a_layer_left_as_it_is_does_what_torch_does(kind: str) -> None:
    layer = LAYERS[kind]()
    x = torch.randn(3, K)
    with torch.no_grad(), autocast():
        expected = nn.functional.linear(x, layer.weight, layer.bias)
        assert expected.dtype == torch.bfloat16
        assert torch.equal(layer(x), expected)


EMITTING: dict[str, tuple[Callable[[], PolicyLayer], tuple[int, ...]]] = {
    "silu": (SiluAndMul, (3, 2 * K)),
    "gelu": (GeluAndMul, (3, 2 * K)),
    "norm": (lambda: RMSNorm(K), (3, K)),
}
CODES = Quantization("float8_e4m3fn", "token", scheme="dynamic")


@pytest.mark.parametrize("output", [None, "float32", "bfloat16", CODES], ids=str)
@pytest.mark.parametrize("kind", EMITTING)
def test_activations_and_norms_emit_what_they_emit_outside(kind: str, output: Any) -> None:
    make, shape = EMITTING[kind]
    layer = make()
    layer.take_scheme(Scheme("none", output=output))
    dtype = the_same(layer, torch.randn(shape)).dtype
    assert dtype == (getattr(torch, output) if isinstance(output, str) else torch.float32)


@pytest.mark.parametrize("output", ["float32", CODES], ids=str)
def test_an_attention_hands_on_what_its_plan_says(output: Any) -> None:
    layer = Attention(4, 16, 2)
    layer.take_scheme(Scheme("none", output=output, kv_cache=Quantization("float8_e4m3fn", "tensor", scheme="static")))
    q, k, v = torch.randn(1, 3, 4, 16), torch.randn(1, 3, 2, 16), torch.randn(1, 3, 2, 16)
    with torch.no_grad(), autocast():
        cache = layer.new_cache(1, 8, dtype=torch.float32)
        mixed = layer(q, k, v, cache)
    assert cache.k.dtype == torch.float8_e4m3fn
    assert mixed.dtype == torch.float32 if isinstance(output, str) else isinstance(mixed, QuantizedTensor)


def test_codes_that_are_handed_on_are_read_as_outside() -> None:
    layer = quantized("fp8", {}, "linear")
    norm = RMSNorm(K)
    norm.take_scheme(Scheme("none", output=CODES))
    assert the_same(lambda x: layer(norm(x)), torch.randn(3, K)).dtype == torch.float32
