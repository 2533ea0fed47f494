"""What a method makes of a layer takes the bytes that the plan counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import nn

from policyquant import BuildError, build
from policyquant.building.layer_bytes import check_bytes
from policyquant.layers.linear import Linear, QKVParallelLinear
from policyquant.layers.moe import ExpertsLinear
from policyquant.methods import registry
from policyquant.methods.base import WeightLayer
from policyquant.methods.int8_weight_only import Int8WeightOnly
from policyquant.methods.registry import method_for, register
from policyquant.policy.methods import METHODS
from policyquant.policy.scheme import Quantization, Scheme


@pytest.fixture
def wasteful(monkeypatch: pytest.MonkeyPatch) -> str:
    """A method whose `create_weights` makes a buffer that its spec does not tell of."""
    monkeypatch.setattr(registry, "_classes", dict(registry._classes))
    monkeypatch.setattr(METHODS, "_brought", dict(METHODS._brought))

    @register
    class Wasteful(Int8WeightOnly):
        spec = replace(METHODS["int8_weight_only"], name="wasteful")

        def create_weights(self, layer: WeightLayer, device: torch.device) -> None:
            super().create_weights(layer, device)
            layer._buffers["workspace"] = torch.zeros(100, device=device)

    return Wasteful.spec.name


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_tensor_that_the_plan_does_not_count_is_an_error_with_both_figures(wasteful: str, device: str) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 8))
    held = r"holds 560 bytes \(weight 128, weight_scale 32, workspace 400\)"
    with pytest.raises(BuildError, match=rf"1: method 'wasteful' {held}, and a plan counts 160 for"):
        build(lambda: model, policy={"layers": {"1": wasteful}}, device=device)
    assert type(model[1]) is nn.Linear, "the model is as it was"


@pytest.mark.parametrize("granularity", ["tensor", "channel"])
@pytest.mark.parametrize("scheme", ["static", "dynamic"])
@pytest.mark.parametrize(
    "layer",
    [
        lambda: Linear(24, 12),
        lambda: QKVParallelLinear(32, 8, 4, 2),
        lambda: ExpertsLinear(4, 16, {"gate_proj": 8, "up_proj": 8}),
    ],
    ids=["linear", "merged", "experts"],
)
def test_a_method_whose_bytes_are_counted_passes(
    layer: Callable[[], Linear | QKVParallelLinear | ExpertsLinear],
    granularity: Literal["tensor", "channel"],
    scheme: Literal["static", "dynamic"],
) -> None:
    weight = Quantization("float8_e4m3fn", granularity)
    input = Quantization("float8_e4m3fn", "tensor", scheme=scheme)
    made = layer()
    made.take_method(method_for(Scheme("fp8", weight, input)), torch.device("cpu"))
    check_bytes(made)
