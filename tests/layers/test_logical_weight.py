"""What others read of a quantized layer's weight, and what cannot happen to its codes."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (its customary name)
from torch import nn

from policyquant.errors import PolicyQuantError
from policyquant.layers.embedding import ParallelLMHead, VocabParallelEmbedding
from policyquant.layers.linear import Linear
from policyquant.layers.logical_weight import LogicalWeight, LogicalWeightWarning, dequantizations
from policyquant.methods.registry import method_for
from policyquant.policy.scheme import Quantization, Scheme

INT8 = Scheme("int8_weight_only", Quantization("int8", "channel"))


def _fill(layer: nn.Module) -> None:
    for name, tensor in layer.named_buffers():
        tensor.copy_(torch.arange(tensor.numel()).reshape(tensor.shape) % 7 + (1 if name == "weight_scale" else 0))


@pytest.fixture
def layer() -> Linear:
    layer = Linear(8, 4)
    layer.take_method(method_for(INT8), torch.device("cpu"))
    _fill(layer)
    return layer


def test_shape_dtype_and_device_are_logical_and_cost_nothing(layer: Linear) -> None:
    before = dequantizations.total()
    assert isinstance(layer.weight, LogicalWeight)
    assert (layer.weight.shape, layer.weight.dtype, layer.weight.device.type) == ((4, 8), torch.float32, "cpu")
    assert dequantizations.total() == before


def test_linear_on_the_weight_goes_to_the_method(layer: Linear) -> None:
    x = torch.randn(3, 8)
    assert torch.equal(F.linear(x, layer.weight, layer.bias), layer(x))
    torch.testing.assert_close(F.linear(x, layer.weight), layer(x) - layer.bias, atol=1e-4, rtol=1e-4)


def test_other_uses_compute_the_values_and_are_counted_and_warned_of_once(layer: Linear) -> None:
    layer.layer_name = "read.by.others"
    with pytest.warns(LogicalWeightWarning, match=r"read\.by\.others"):
        first = layer.weight + 0
    assert torch.equal(first, layer.weight.clone())
    assert torch.equal(first, layer.quant_method.dequantize(layer))
    assert dequantizations["read.by.others"] == 2


@pytest.mark.filterwarnings("ignore::policyquant.layers.logical_weight.LogicalWeightWarning")
def test_numpy_and_lists_get_the_values(layer: Linear) -> None:
    values = layer.quant_method.dequantize(layer)
    assert layer.weight.tolist() == values.tolist()
    assert (layer.weight.numpy() == values.numpy()).all()
    assert (np.asarray(layer.weight.detach().cpu()) == values.numpy()).all()


def test_nothing_takes_the_place_of_the_weight(layer: Linear) -> None:
    x = torch.randn(3, 8)
    before = layer(x)
    with pytest.raises(PolicyQuantError, match="cannot be written to or replaced"):
        del layer.weight
    with pytest.raises(PolicyQuantError, match="cannot be written to or replaced"):
        nn.utils.parametrizations.weight_norm(layer)
    assert type(layer) is Linear
    assert torch.equal(layer(x), before)


def test_a_logical_weight_in_place_of_the_codes_is_told(layer: Linear) -> None:
    layer._buffers["weight"] = layer.weight
    with pytest.raises(PolicyQuantError, match=r"the codes of layer 'Linear' .* are gone: something read its weight"):
        layer(torch.randn(3, 8))


def test_the_weight_of_an_unquantized_layer_may_be_parametrized() -> None:
    layer = nn.utils.parametrizations.weight_norm(Linear(8, 4))
    layer(torch.randn(3, 8)).sum().backward()
    assert layer.parametrizations.weight.original0.grad is not None


def test_the_weight_cannot_be_written_or_replaced(layer: Linear) -> None:
    with pytest.raises(PolicyQuantError, match="cannot be written"):
        nn.init.normal_(layer.weight)
    with pytest.raises(PolicyQuantError, match="cannot be written"):
        layer.weight.data = torch.zeros(2, 2)
    with pytest.raises(PolicyQuantError, match="cannot be written"):
        layer.weight = nn.Parameter(torch.ones(4, 8))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_copies_are_exact(layer: Linear, duplicate: object) -> None:
    other = duplicate(layer)  # type: ignore[operator]  # one of the two above
    for name, tensor in layer.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name])
        assert tensor.dtype == other.state_dict()[name].dtype


def test_a_new_dtype_leaves_codes_and_scales_alone(layer: Linear) -> None:
    before = {name: tensor.clone() for name, tensor in layer.named_buffers()}
    layer.to(torch.bfloat16)
    assert layer.params_dtype == layer.weight.dtype == layer.bias.dtype == torch.bfloat16
    for name, tensor in layer.named_buffers():
        assert tensor.dtype == before[name].dtype
        assert torch.equal(tensor, before[name])


def test_the_state_of_another_scheme_is_refused_by_name(layer: Linear) -> None:
    codes = layer._buffers["weight"].clone()
    with pytest.raises(RuntimeError, match=r"weight is float32 \[4, 8\], but the layer is int8_weight_only"):
        layer.load_state_dict(Linear(8, 4).state_dict())
    with pytest.raises(RuntimeError, match="codes of a quantized layer"):
        Linear(8, 4).load_state_dict(layer.state_dict(), strict=False)
    assert torch.equal(layer._buffers["weight"], codes)


def test_a_head_tied_to_a_quantized_embedding_owns_nothing() -> None:
    embedding, head = VocabParallelEmbedding(5, 8), ParallelLMHead(5, 8)
    embedding.take_method(method_for(INT8), torch.device("cpu"))
    _fill(embedding)
    head.weight = embedding.weight
    assert head.state_dict() == {}
    x = torch.randn(3, 8)
    assert torch.equal(head(x), embedding.quant_method.apply(embedding, x))
