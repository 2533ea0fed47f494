"""Method `none`: bit for bit what torch's own layers compute."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from policyquant.checkpoint.tensors import LazyTensor, MemoryTensor, Slot
from policyquant.layers.base import WeightLayer
from policyquant.methods.unquantized import Unquantized
from policyquant.policy.scheme import NONE, Scheme

K = 12


class Layer(WeightLayer):
    """A layer that is nothing but its weights."""

    def __init__(
        self, parts: dict[str, int], experts: int | None = None, *, bias: bool = False, scheme: Scheme = NONE
    ) -> None:
        super().__init__(K, parts, has_bias=bias, num_experts=experts, prefix="model.layer", dtype=torch.bfloat16)
        self.take_method(Unquantized(scheme), torch.device("cpu"))


def slots(tensors: dict[tuple[str, str, int | None], torch.Tensor]) -> dict[Slot, LazyTensor]:
    return {Slot(*place): MemoryTensor(".".join(map(str, place)), tensor) for place, tensor in tensors.items()}


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.bfloat16)


def loaded(layer: Layer, tensors: dict[Slot, LazyTensor]) -> Layer:
    assert list(layer.quant_method.check(layer, tensors)) == []
    layer.quant_method.load(layer, tensors)
    return layer


@pytest.mark.parametrize("bias", [False, True])
def test_the_product_is_that_of_torch_to_the_bit(bias: bool) -> None:
    weight, offset, x = random(7, K), random(7), random(3, K)
    tensors = {("weight", "", None): weight} | ({("bias", "", None): offset} if bias else {})
    layer = loaded(Layer({"": 7}, bias=bias), slots(tensors))
    assert torch.equal(layer.quant_method.apply(layer, x), functional.linear(x, weight, offset if bias else None))


def test_parts_are_stacked_in_order() -> None:
    q, k = random(4, K), random(3, K)
    layer = loaded(Layer({"q": 4, "k": 3}), slots({("weight", "k", None): k, ("weight", "q", None): q}))
    assert torch.equal(layer.quant_method.dequantize(layer), torch.cat((q, k)))


def test_parameters_own_their_memory() -> None:
    weight = random(7, K)
    layer = loaded(Layer({"": 7}), slots({("weight", "", None): weight}))
    weight.zero_()
    assert bool(layer.quant_method.dequantize(layer).any())


def test_each_expert_computes_its_own_rows_and_no_other_is_read() -> None:
    weights = [random(5, K), torch.full((5, K), float("nan"), dtype=torch.bfloat16), random(5, K) * 2]
    layer = loaded(Layer({"w": 5}, experts=3), slots({("weight", "w", e): w for e, w in enumerate(weights)}))
    x = random(5, K)
    result = layer.quant_method.apply_experts(layer, x, [2, 0, 3])
    assert torch.equal(result, torch.cat((x[:2] @ weights[0].T, x[2:] @ weights[2].T)))


def test_no_rows_for_any_expert_give_no_rows() -> None:
    layer = Layer({"w": 5}, experts=2)
    assert layer.quant_method.apply_experts(layer, random(0, K), [0, 0]).shape == (0, 5)


def test_an_output_dtype_of_the_plan_is_what_comes_out() -> None:
    layer = loaded(Layer({"": 7}, scheme=Scheme("none", output="float32")), slots({("weight", "", None): random(7, K)}))
    assert layer.quant_method.apply(layer, random(2, K)).dtype == torch.float32


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ({}, "model.layer: no weight is stored"),
        ({("weight", "", None): torch.zeros(5, K)}, r"has shape \[5, 12\]; expected \[6, 12\]"),
        ({("weight", "", None): torch.zeros(6, K, dtype=torch.int8)}, "stored as torch.int8"),
        ({("weight", "", None): torch.zeros(6, K), ("bias", "", None): torch.zeros(6)}, "has no place in this layer"),
        ({("weight", "q", None): torch.zeros(6, K)}, "has no place in this layer"),
    ],
)
def test_what_cannot_be_loaded_is_said_before_loading(
    tensors: dict[tuple[str, str, int | None], torch.Tensor], problem: str
) -> None:
    layer = Layer({"": 6})
    with pytest.raises(AssertionError, match=problem):
        raise AssertionError("\n".join(layer.quant_method.check(layer, slots(tensors))))
