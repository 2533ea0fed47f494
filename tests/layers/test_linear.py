"""Linear layers without a plan compute what torch computes, and a plain torch module becomes one in place."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

from policyquant import Inventory, load_policy, resolve
from policyquant.errors import PolicyQuantError
from policyquant.layers.adopt import adopt
from policyquant.layers.linear import Linear, MergedColumnParallelLinear, QKVParallelLinear
from policyquant.layers.norm import RMSNorm
from policyquant.methods.registry import method_for
from policyquant.policy.methods import METHODS
from policyquant.policy.scheme import Scheme


@pytest.mark.parametrize("bias", [True, False])
def test_without_a_plan_a_linear_is_initialised_and_computes_as_torch_does(bias: bool) -> None:
    torch.manual_seed(0)
    plain = nn.Linear(8, 4, bias)
    torch.manual_seed(0)
    ours = Linear(8, 4, bias)
    x = torch.randn(3, 8)
    assert isinstance(ours, nn.Linear)
    assert ours.out_features == 4
    assert torch.equal(ours(x), plain(x))


@pytest.mark.parametrize("make", [partial(Linear, 8, 8), partial(RMSNorm, 8)], ids=["weights", "none"])
def test_a_plan_or_a_policy_in_place_of_a_quant_config_is_told_to_be_wrapped(make: Callable[..., nn.Module]) -> None:
    policy: dict[str, object] = {"layers": {"*": "fp8"}}
    plan = resolve(load_policy(policy), Inventory.from_tensors([("a.0.w", (8, 8), "BF16")]))
    for wrong in (policy, plan):
        with pytest.raises(PolicyQuantError, match=rf"found {type(wrong).__name__}: wrap a plan in PlanConfig"):
            make(quant_config=wrong, prefix="a")


def test_adopting_keeps_the_object_its_parameters_and_hooks() -> None:
    module = nn.Linear(8, 4).eval()
    weight, seen = module.weight, []
    module.register_forward_hook(lambda *_: seen.append(1))
    x = torch.randn(3, 8)
    before = module(x)
    ours = adopt(module)
    assert ours is module
    assert type(module) is Linear
    assert module.weight is weight
    assert not module.training
    assert torch.equal(ours(x), before)
    assert len(seen) == 2


def test_a_subclass_is_not_adopted() -> None:
    with pytest.raises(PolicyQuantError, match="LazyLinear"):
        adopt(nn.LazyLinear(2))


def test_merged_results_stand_side_by_side() -> None:
    layer = MergedColumnParallelLinear(8, {"gate_proj": 3, "up_proj": 5})
    x = torch.randn(2, 8)
    gate, up = layer(x).split([3, 5], dim=-1)
    torch.testing.assert_close(gate, nn.functional.linear(x, layer.weight[:3], layer.bias[:3]))
    torch.testing.assert_close(up, nn.functional.linear(x, layer.weight[3:], layer.bias[3:]))


def test_qkv_rows_follow_the_heads() -> None:
    layer = QKVParallelLinear(8, head_dim=4, num_heads=2, num_kv_heads=1, bias=False)
    assert layer.parts == {"q_proj": 8, "k_proj": 4, "v_proj": 4}
    assert layer(torch.randn(2, 8)).shape == (2, 16)


def test_a_deep_copy_owns_equal_tensors() -> None:
    layer = Linear(8, 4)
    other = copy.deepcopy(layer)
    assert torch.equal(layer.weight, other.weight)
    assert layer.weight.data_ptr() != other.weight.data_ptr()


def test_a_new_dtype_is_the_logical_one() -> None:
    assert Linear(8, 4).to(torch.bfloat16).params_dtype == torch.bfloat16


@pytest.mark.parametrize("method", ["none", "fp8"])
def test_a_bias_goes_along_when_a_layer_takes_a_method_in_another_dtype(method: str) -> None:
    layer = Linear(8, 4)
    values = layer.bias.detach().clone()
    layer.params_dtype = torch.bfloat16
    spec = METHODS[method]
    layer.take_method(method_for(Scheme(method, spec.weight, spec.input)), torch.device("cpu"))
    assert layer.bias.dtype == torch.bfloat16
    assert torch.equal(layer.bias, values.to(torch.bfloat16))
