"""An argument that makes no sense is one sentence, before anything is made."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from policyquant import Inventory, PlanConfig, build, load_policy, load_weights, resolve
from policyquant.errors import BuildError, PolicyQuantError, SourceError

POLICY = {"layers": {"*": "fp8"}}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x))  # type: ignore[no-any-return]


def state() -> dict[str, torch.Tensor]:
    return Model().state_dict()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"device": "gpu"}, "device 'gpu' cannot be used here: Expected one of cpu, cuda"),
        ({"device": "cpu:0:1"}, "device 'cpu:0:1' cannot be used here"),
        ({"dtype": "bfloat16"}, "dtype is one of torch.float32, .*; found 'bfloat16'"),
        ({"dtype": torch.int8}, "found torch.int8"),
        ({"dtype": torch.float8_e4m3fn}, "found torch.float8_e4m3fn"),
        ({"rename": "up"}, "rename maps regular expressions to replacements, all of them strings; found str"),
        ({"rename": {"up": None}}, "found 'up': None"),
    ],
    ids=str,
)
def test_an_argument_of_another_kind_is_told_with_what_is_expected(given: dict[str, Any], message: str) -> None:
    with pytest.raises(BuildError, match=message):
        build(Model, policy=POLICY, source=state(), **given)
    with pytest.raises(BuildError, match=message):
        load_weights(Model(), state(), **given)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_device_that_is_not_there_is_told_before_the_factory_runs() -> None:
    def factory() -> nn.Module:
        raise AssertionError("the factory ran")

    with pytest.raises(BuildError, match="device 'cuda' cannot be used here"):
        build(factory, policy=POLICY, source=state(), device="cuda")


def test_a_model_in_place_of_its_factory_is_told_how_to_give_one() -> None:
    factory: Any = Model()
    with pytest.raises(
        BuildError, match="found the Model itself; without a source, lambda: model quantizes it in place"
    ):
        build(factory, policy=POLICY)


def test_a_function_that_returns_a_model_which_is_there_quantizes_it_in_place() -> None:
    model, x = Model(), torch.randn(2, 8)
    expected = build(Model, policy=POLICY, source=model.state_dict())(x)
    assert build(lambda: model, policy=POLICY) is model
    assert model.state_dict()["up.weight"].dtype == torch.float8_e4m3fn
    assert torch.equal(model(x), expected)


@pytest.mark.parametrize("with_source", [False, True])
def test_a_model_that_cannot_be_quantized_in_place_stays_as_it_was(with_source: bool) -> None:
    model = Model()
    with torch.no_grad():
        model.down.weight[0, 0] = torch.nan
    before = dict(model.named_parameters())
    source = {name: values.clone() for name, values in model.state_dict().items()} if with_source else None
    with pytest.raises(PolicyQuantError, match=r"'down\.weight'"):
        build(lambda: model, policy=POLICY, source=source)
    assert type(model.up) is nn.Linear
    assert all(parameter is before[name] for name, parameter in model.named_parameters())


@pytest.mark.parametrize("given", ["fp8-dynamic", {"layers": {"*": "fp8"}}, load_policy("fp8-dynamic"), None], ids=str)
def test_what_is_no_plan_makes_no_plan_config(given: Any) -> None:
    message = rf"PlanConfig takes a Plan, found {type(given).__name__}; resolve\(policy, inventory\) makes one"
    with pytest.raises(BuildError, match=message):
        PlanConfig(given)


def test_methods_that_do_not_run_are_a_line_each_with_their_rules_before_any_other_problem() -> None:
    blocks = nn.ModuleList([Model() for _ in range(3)])
    source = {**blocks.state_dict(), "surplus": torch.zeros(2)}
    policy = {"layers": {"*.up": "int8", "2.up": "int8", "*.down": "fp8_block"}}
    with pytest.raises(BuildError, match=r"<dict> cannot be built for ModuleList: 2 problems\n") as caught:
        build(lambda: blocks, policy=policy, source=source)
    assert "surplus" not in str(caught.value)
    assert "'int8' can be planned, but nothing runs it yet; methods that run: none, fp8" in str(caught.value)
    assert "; the plan gives it to 3 layers by '*.up' (<dict>), '2.up' (<dict>)\n" in str(caught.value)


def test_a_plan_with_a_method_that_does_not_run_makes_no_plan_config() -> None:
    inventory = Inventory.from_tensors([("model.layers.0.mlp.up_proj.weight", (8, 8), "BF16")])
    plan = resolve(load_policy("int8-dynamic"), inventory)
    with pytest.raises(BuildError, match="method 'int8' can be planned"):
        PlanConfig(plan)


def test_what_is_no_model_cannot_be_loaded() -> None:
    model: Any = state()
    with pytest.raises(BuildError, match=r"the model is OrderedDict, expected an nn\.Module"):
        load_weights(model, state())


def test_a_tensor_that_is_not_dense_is_refused_by_name() -> None:
    source = state()
    source["up.weight"] = source["up.weight"].to_sparse()
    with pytest.raises(SourceError, match="has layout sparse_coo; expected a dense tensor"):
        build(Model, policy=POLICY, source=source)


def test_a_tensor_whose_values_are_negated_lazily_is_read_as_what_it_says() -> None:
    source = state()
    negated = {**source, "up.weight": torch._neg_view(-source["up.weight"])}  # type: ignore[attr-defined]
    x = torch.randn(2, 8)
    assert torch.equal(build(Model, policy=POLICY, source=negated)(x), build(Model, policy=POLICY, source=source)(x))


def test_names_that_meet_nowhere_are_told_beside_what_the_policy_then_finds() -> None:
    source = {f"model.{name}": tensor for name, tensor in state().items()}
    with pytest.raises(
        BuildError, match=r"the source has 'model\.up\.weight', the model 'up\.weight'; rename="
    ) as caught:
        build(Model, policy=POLICY, source=source)
    assert "PQ103" in str(caught.value)
