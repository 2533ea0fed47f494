"""A layer of ours whose class has parameters and buffers of its own, beside those of its method."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

from policyquant import build, load_policy, resolve
from policyquant.building.load_weights import load_weights
from policyquant.building.plan_config import PlanConfig
from policyquant.building.targets import logical_state
from policyquant.errors import BuildError, PolicyQuantError
from policyquant.inventory.inventory import Inventory
from policyquant.layers.linear import Linear, QKVParallelLinear
from tests.building.stored_forms import State, save

FP8 = {"version": 1, "layers": {"a": "fp8", "{q,k,v}_proj": "fp8"}}


class LoraLinear(Linear):
    """x Wᵀ + b, and a product of low rank, times a constant (LoRA: Hu 2021, arXiv:2106.09685)."""

    def __init__(self, config: PlanConfig | None = None) -> None:
        super().__init__(16, 16, quant_config=config, prefix="a" if config else "")
        # One row: a stored scale of this shape would be turned round.
        self.lora_a = nn.Parameter(torch.randn(1, 16))
        self.lora_b = nn.Parameter(torch.randn(16, 1))
        self.register_buffer("steps", torch.tensor(3))
        self.register_buffer("table", torch.arange(4.0), persistent=False)


class ScaledQKV(QKVParallelLinear):
    def __init__(self, config: PlanConfig | None = None) -> None:
        super().__init__(16, 4, 4, 2, quant_config=config, prefix="qkv_proj" if config else "")
        self.temperature = nn.Parameter(torch.randn(1))


class Model(nn.Module):
    def __init__(self, config: PlanConfig | None = None) -> None:
        super().__init__()
        self.a = LoraLinear(config)
        self.qkv_proj = ScaledQKV(config)


OWN = ("a.lora_a", "a.lora_b", "a.steps", "qkv_proj.temperature")


@pytest.fixture
def state() -> State:
    torch.manual_seed(0)
    return {name: tensor.contiguous() for name, tensor in logical_state(Model()).items()}


def check_own(model: nn.Module, state: State) -> None:
    held = model.state_dict()
    for name in OWN:
        assert torch.equal(held[name], state[name]), name
    assert torch.equal(model.get_buffer("a.table"), torch.arange(4.0))


@pytest.mark.parametrize("policy", [None, FP8])
def test_they_are_loaded_as_they_are_stored(tmp_path: Path, state: State, policy: dict[str, object] | None) -> None:
    model = build(Model, policy=policy, source=save(tmp_path, state, None))
    check_own(model, state)
    stored = torch.float32 if policy is None else torch.float8_e4m3fn
    assert {model.state_dict()[f"{name}.weight"].dtype for name in ("a", "qkv_proj")} == {stored}


def test_a_model_built_from_its_own_values_keeps_them(state: State) -> None:
    torch.manual_seed(0)
    check_own(build(Model, policy=FP8), state)


def test_layers_that_took_their_methods_at_construction_have_them_too(state: State) -> None:
    inventory = Inventory.from_tensors((name, tensor.shape, tensor.dtype) for name, tensor in state.items())
    plan = resolve(load_policy(FP8), inventory.with_classes({"a": "Linear"}))
    model = Model(PlanConfig(plan))
    load_weights(model, state)
    check_own(model, state)
    load_weights(model, state)
    assert model.state_dict()["a.weight"].dtype == torch.float8_e4m3fn


def test_they_follow_conversions_and_copies_as_in_any_module(state: State) -> None:
    model = build(Model, policy=FP8, source=state)
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        check_own(again, state)
        again.load_state_dict(model.state_dict())
    layer = model.half().get_submodule("a")
    assert isinstance(layer, LoraLinear)
    assert layer.lora_a.dtype == layer.table.dtype == torch.float16
    assert layer.steps.dtype == torch.int64
    assert model.state_dict()["a.weight_scale"].dtype == torch.float32


def test_in_a_layer_that_is_added_later_they_stay_the_same_objects() -> None:
    model = build(nn.Sequential, policy={"version": 1, "default": "fp8", "layers": {}})
    layer = LoraLinear()
    own = layer.lora_a, layer.steps
    model.a = layer
    assert layer.quant_method.scheme.method == "fp8"
    assert (layer.lora_a, layer.steps) == own


def test_one_that_is_not_stored_is_told_with_its_name(state: State) -> None:
    del state["a.lora_b"], state["qkv_proj.temperature"]
    with pytest.raises(
        BuildError, match=r"2 problems\n  'a\.lora_b' is in the model, .*\n  'qkv_proj\.temperature' is"
    ):
        build(Model, policy=FP8, source=state)


def test_a_name_that_the_method_uses_is_refused() -> None:
    class Scaled(Linear):
        def __init__(self) -> None:
            super().__init__(16, 16)
            self.register_buffer("weight_scale", torch.ones(16))

    with pytest.raises(
        PolicyQuantError, match="a: Scaled has a 'weight_scale' of its own, and method 'fp8' stores one"
    ):
        build(lambda: nn.ModuleDict({"a": Scaled()}), policy={"layers": {"a": "fp8"}})
