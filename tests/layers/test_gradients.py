"""Gradients go through a quantized layer as if its input were not rounded, and never wrongly in silence."""

from __future__ import annotations

import pytest
import torch

from policyquant.errors import PolicyQuantError
from policyquant.layers.activation import SiluAndMul
from policyquant.layers.linear import Linear
from policyquant.layers.moe import ExpertsLinear
from policyquant.policy.scheme import Quantization, Scheme
from tests.methods.layers_under_test import COUNTS, PRODUCTS, QUANTIZED, K, loaded


@pytest.mark.parametrize("kind", PRODUCTS)
@pytest.mark.parametrize("form", QUANTIZED)
def test_gradients_are_those_of_the_product_with_the_weight_as_stored(form: str, kind: str) -> None:
    layer = loaded(kind, form)
    x = torch.randn(sum(COUNTS), K, requires_grad=True)
    experts = isinstance(layer, ExpertsLinear)
    y = layer(x, COUNTS) if experts else layer(x)
    upstream = torch.randn_like(y)
    y.backward(upstream)
    weight = layer.quant_method.dequantize(layer)
    if experts:
        rows = upstream.split(COUNTS)
        expected = torch.cat([each @ weight[expert] for expert, each in enumerate(rows)])
        of_bias = torch.stack([each.sum(0) for each in rows])
    else:
        expected, of_bias = upstream @ weight, upstream.sum(0)
    torch.testing.assert_close(x.grad, expected)
    if layer.bias is not None:
        torch.testing.assert_close(layer.bias.grad, of_bias)


def test_a_gradient_keeps_no_decoded_weight_until_it_is_computed() -> None:
    layer = loaded("linear", "int8_weight_only")
    kept: list[torch.Size] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor.shape), lambda _: None):
        layer(torch.randn(2, K, requires_grad=True))
    assert layer.weight_shape not in kept


@pytest.mark.parametrize("shape", [(K,), (2, K), (2, 3, K)])
@pytest.mark.parametrize("form", QUANTIZED)
def test_an_activation_may_write_into_the_result(form: str, shape: tuple[int, ...]) -> None:
    layer = loaded("linear", form)
    one, two = torch.ones(shape, requires_grad=True), torch.ones(shape, requires_grad=True)
    layer(one).relu_().sum().backward()
    layer(two).relu().sum().backward()
    assert torch.equal(one.grad, two.grad)


def test_a_gradient_that_arrives_at_codes_is_an_error() -> None:
    activation, linear = SiluAndMul(), loaded("linear", "fp8")
    activation.take_scheme(Scheme("none", output=Quantization("float8_e4m3fn", "token", scheme="dynamic")))
    assert isinstance(linear, Linear)
    y = linear(activation(torch.randn(2, 2 * K, requires_grad=True)))
    with pytest.raises(PolicyQuantError, match="no gradient goes through activations that a layer hands on as codes"):
        y.sum().backward()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's, of its own doing
@pytest.mark.parametrize("form", QUANTIZED)
def test_a_layer_compiles_in_one_graph_with_its_gradients(form: str) -> None:
    torch._dynamo.reset()  # all forms share one forward, of which few compilations are kept
    layer = loaded("linear", form)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    one, two = (torch.ones(2, K, requires_grad=True) for _ in range(2))
    y, z = layer(one), compiled(two)
    assert torch.equal(y, z)
    y.sum().backward()
    z.sum().backward()
    assert torch.equal(one.grad, two.grad)
    with torch.no_grad():
        assert torch.equal(compiled(two), y)
