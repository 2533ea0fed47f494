"""The dtype of what is not quantized, where weights beside it are."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from policyquant import build
from policyquant.layers.built import place_of
from tests.building.test_arguments import POLICY, Model

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("method", ["fp8", "int8_weight_only"])
@pytest.mark.parametrize("weight", DTYPES)
@pytest.mark.parametrize("bias", DTYPES)
def test_a_bias_is_held_as_it_is_stored_and_as_the_plan_counts_it(
    weight: torch.dtype, bias: torch.dtype, method: str
) -> None:
    source = {
        name: tensor.to(bias if name.endswith("bias") else weight) for name, tensor in Model().state_dict().items()
    }
    model = build(Model, policy={"layers": {"*": method}}, source=source)
    assert isinstance(model, Model)
    assert model.up.bias.dtype == bias
    assert torch.equal(model.up.bias, source["up.bias"])
    assert model.up.weight.dtype == weight
    place: Any = place_of(model)
    held = sum(tensor.nbytes for tensor in model.state_dict().values())
    assert held == sum(layer.bytes_after for layer in place.origin.plan)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_state_dict_of_a_quantized_model_builds_that_model_again(dtype: torch.dtype) -> None:
    source = {name: tensor.to(dtype) for name, tensor in Model().state_dict().items()}
    first = build(Model, policy=POLICY, source=source)
    second = build(Model, policy=POLICY, source=first.state_dict())
    x = torch.randn(2, 8, dtype=dtype)
    assert first(x).dtype == dtype
    assert torch.equal(first(x), second(x))
