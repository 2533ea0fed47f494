"""`build`, and layers constructed with a plan and loaded by `load_weights`, give one and the same model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from policyquant import Inventory, Plan, PlanConfig, build, load_policy, load_weights, read_plan, resolve
from policyquant.building.targets import logical_state
from policyquant.errors import BuildError, PolicyQuantError, SourceError
from policyquant.layers.base import PolicyLayer, WeightLayer
from policyquant.layers.linear import Linear
from policyquant.methods.registry import BUILT_IN
from policyquant.models.families import FAMILIES
from policyquant.policy.scheme import NONE, Scheme
from tests.building.test_build import IDS, LLAMA, MIXTRAL, checkpoint

STATIC = {"method": "fp8", "input": {"granularity": "tensor", "scheme": "static", "scale": 0.05}}
POLICIES: Mapping[str, Any] = {
    "none": {"default": "none"},
    "fp8": {"layers": {"*": "fp8"}},
    "fp8, head too": {"layers": {"*": "fp8", "lm_head": "fp8"}, "untie": True},
    "fp8 per tensor": {"layers": {"*": {"method": "fp8", "weight": {"granularity": "tensor"}}}},
    "fp8 static": {"layers": {"*": STATIC}},
    "int8_weight_only": {"layers": {"*": "int8_weight_only"}},
    "int8_weight_only, tied": {"layers": {"{*.embed_tokens,lm_head}": "int8_weight_only"}},
    "several": {
        "layers": {
            "decoder.*.{mlp,moe}": "fp8",
            "*.qkv_proj": "int8_weight_only",
            "*.o_proj": "none",
            "decoder.*.{mlp,moe.experts}.act": {"output": "fp8"},
            "*.1.self_attn": {"kv_cache": "fp8"},
            "*.0.self_attn.o_proj": {"output": "bf16"},
        }
    },
}
MODELS = {"llama": LLAMA, "mixtral": MIXTRAL}


def cases() -> list[Any]:
    untied = {"tie_word_embeddings": False}
    return [
        pytest.param(
            {**MODELS[model], **(untied if "head" in policy else {})}, POLICIES[policy], id=f"{model} {policy}"
        )
        for model in MODELS
        for policy in POLICIES
        if not ("tied" in policy and model == "mixtral")
    ]


def constructed(config: Mapping[str, Any], plan: Plan, **arguments: Any) -> nn.Module:
    return FAMILIES[config["model_type"]](config, quant_config=PlanConfig(plan), **arguments)


def schemes(model: nn.Module) -> dict[str, Scheme]:
    return {name: module.scheme for name, module in model.named_modules() if isinstance(module, PolicyLayer)}


def same(first: nn.Module, second: nn.Module) -> None:
    """Both hold the same tensors under the same names, to the bit, and hand on the same dtypes."""
    one, other = first.state_dict(), second.state_dict()
    assert list(one) == list(other)
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype, name
        assert torch.equal(tensor.view(torch.uint8), other[name].view(torch.uint8)), name
    assert schemes(first) == schemes(second)
    with torch.no_grad():
        assert torch.equal(first(IDS), second(IDS))


@pytest.mark.parametrize("from_file", [False, True], ids=["", "plan.json"])
@pytest.mark.parametrize(("config", "policy"), cases())
def test_both_ways_give_one_state_dict(config: Any, policy: Any, from_file: bool, tmp_path: Path) -> None:
    source = checkpoint(tmp_path, config)
    plan = resolve(load_policy(policy), Inventory.open(source))
    if from_file:
        (tmp_path / "plan.json").write_text(plan.to_json())
        plan = read_plan(tmp_path / "plan.json")
    built = build(lambda: FAMILIES[config["model_type"]](config), policy=policy, source=source)
    model = constructed(config, plan)
    assert load_weights(model, source) is None  # type: ignore[func-returns-value]
    same(built, model)


def test_the_policies_have_every_method_in_them() -> None:
    written = str(POLICIES)
    assert [name for name in BUILT_IN if f"'{name}'" not in written] == []


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return checkpoint(tmp_path, LLAMA)


def plan_of(source: Path, policy: Any = POLICIES["several"]) -> Plan:
    return resolve(load_policy(policy), Inventory.open(source))


def test_layers_have_their_final_form_before_they_are_loaded(source: Path) -> None:
    plan = plan_of(source)
    model = constructed(LLAMA, plan, dtype=torch.bfloat16)
    before = {name: (tensor.shape, tensor.dtype) for name, tensor in model.state_dict().items()}
    load_weights(model, source)
    assert {name: (tensor.shape, tensor.dtype) for name, tensor in model.state_dict().items()} == before


def test_layers_on_meta_are_loaded_to_the_cpu(source: Path) -> None:
    plan = plan_of(source)
    model = constructed(LLAMA, plan, device="meta")
    load_weights(model, source)
    same(model, build(lambda: FAMILIES["llama"](LLAMA), policy=plan, source=source))


def test_a_buffer_on_meta_cannot_be_loaded_and_is_named() -> None:
    with torch.device("meta"):
        model = Small(PlanConfig(small_plan({"layers": {"*": "fp8"}})))
        model.register_buffer("table", torch.ones(3), persistent=False)
    with pytest.raises(BuildError, match=r"the root Small: buffer 'table' .*has no values"):
        load_weights(model, Small().state_dict())


def test_a_dtype_is_that_of_all_that_is_not_quantized(source: Path) -> None:
    model = constructed(LLAMA, plan_of(source))
    load_weights(model, source, dtype=torch.float32)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.state_dict()["model.layers.0.mlp.down_proj.weight"].dtype == torch.float8_e4m3fn


def test_a_model_is_loaded_again_with_other_weights(source: Path, tmp_path: Path) -> None:
    plan = plan_of(source)
    model = constructed(LLAMA, plan)
    load_weights(model, {name: 2 * tensor for name, tensor in state(source).items()})
    load_weights(model, source)
    same(model, build(lambda: FAMILIES["llama"](LLAMA), policy=plan, source=source))


def state(source: Path) -> dict[str, torch.Tensor]:
    return logical_state(build(lambda: FAMILIES["llama"](LLAMA), policy=None, source=source))


def test_renamed_tensors_find_their_layers(source: Path) -> None:
    foreign = {name.replace("model.layers.", "h."): tensor for name, tensor in state(source).items()}
    plan = resolve(load_policy({"layers": {"h.*.mlp": "fp8"}}), Inventory.from_tensors(triples(foreign), config=LLAMA))
    model = constructed(LLAMA, plan)
    load_weights(model, foreign, rename={r"^h\.": "model.layers."})
    assert model.state_dict()["model.layers.0.mlp.down_proj.weight"].dtype == torch.float8_e4m3fn


def triples(tensors: Mapping[str, torch.Tensor]) -> list[tuple[str, tuple[int, ...], torch.dtype]]:
    return [(name, tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()]


class Small(nn.Module):
    """As somebody writes a model for an engine: one layer given its name, one plain."""

    def __init__(self, quant_config: Any = None, prefix: str = "up") -> None:
        super().__init__()
        self.up = Linear(8, 16, quant_config=quant_config, prefix=prefix)
        self.down = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(x))  # type: ignore[no-any-return]


def small_plan(policy: Any) -> Plan:
    inventory = Inventory.from_tensors(triples(Small().state_dict()), name="Small")
    return resolve(load_policy(policy), inventory.with_classes({"up": "Linear", "down": "Linear"}))


def test_plain_layers_take_what_the_plan_has_for_them() -> None:
    weights = Small().state_dict()
    plan = small_plan({"layers": {"*": "fp8"}})
    model = Small(PlanConfig(plan))
    load_weights(model, weights)
    same_tensors = build(Small, policy=plan, source=weights).state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor.view(torch.uint8), same_tensors[name].view(torch.uint8))


def test_a_layer_that_is_registered_later_takes_what_the_policy_decides() -> None:
    model: Any = Small(PlanConfig(small_plan({"layers": {"*": "fp8"}})))
    load_weights(model, Small().state_dict())
    model.down = nn.Linear(16, 8)
    model.other = nn.Linear(8, 8)
    assert {model.state_dict()[f"{name}.weight"].dtype for name in ("down", "other")} == {torch.float8_e4m3fn}


class Everything:
    """A quant config of somebody's own."""

    def __init__(self, scheme: Scheme) -> None:
        self.scheme = scheme

    def scheme_for(self, layer: nn.Module, name: str) -> Scheme:
        return self.scheme

    def get_quant_method(self, layer: nn.Module, name: str) -> Any:
        from policyquant.methods.registry import method_for

        return method_for(self.scheme)


def test_layers_of_another_quant_config_keep_their_schemes() -> None:
    weights = Small().state_dict()
    fp8 = small_plan({"layers": {"*": "fp8"}})["up"].scheme
    model = Small(Everything(fp8))
    load_weights(model, weights)
    assert model.up.scheme == fp8
    assert type(model.down) is nn.Linear
    assert torch.equal(model.down.weight, weights["down.weight"])


def test_a_layer_constructed_otherwise_than_the_plan_says_is_named_with_both() -> None:
    plan = small_plan({"layers": {"*": "fp8"}})
    model: Any = Small(PlanConfig(plan))
    int8 = small_plan({"layers": {"*": "int8_weight_only"}})["down"].scheme
    model.down = Linear(16, 8, quant_config=Everything(int8), prefix="down")
    with pytest.raises(BuildError, match=r"Linear 'down' was constructed as int8.*, but the plan gives it fp8"):
        load_weights(model, Small().state_dict())


def test_a_prefix_that_is_missing_or_not_the_name_is_an_error() -> None:
    plan = small_plan({"layers": {"*": "fp8"}})
    with pytest.raises(BuildError, match="Linear was given a quant_config without a prefix"):
        Small(PlanConfig(plan), prefix="")
    with pytest.raises(BuildError, match=r"prefix='down', but in the tree it is 'up'"):
        load_weights(Small(PlanConfig(plan), prefix="down"), Small().state_dict())


def test_layers_of_two_plans_are_refused() -> None:
    model: Any = Small(PlanConfig(small_plan({"layers": {"*": "fp8"}})))
    model.down = Linear(16, 8, quant_config=PlanConfig(small_plan({"layers": {"*": "none"}})), prefix="down")
    with pytest.raises(BuildError, match="'up' and 'down' were constructed by two plans"):
        load_weights(model, Small().state_dict())


def test_a_plan_with_errors_makes_no_config(source: Path) -> None:
    with pytest.raises(BuildError, match=r"PQ101: .*no_such_layer"):
        PlanConfig(plan_of(source, {"layers": {"*.no_such_layer": "fp8"}}))


def bits(model: nn.Module) -> dict[str, bytes]:
    return {name: bytes(tensor.view(torch.uint8).numpy()) for name, tensor in model.state_dict().items()}


def test_what_does_not_fit_is_one_error_and_the_model_is_as_it_was(source: Path) -> None:
    model = constructed(LLAMA, plan_of(source))
    load_weights(model, source)
    before = bits(model)
    wrong = state(source)
    del wrong["model.norm.weight"]
    wrong["extra"] = torch.zeros(2)
    wrong["model.layers.0.mlp.down_proj.weight"] = torch.zeros(3, 3)
    with pytest.raises(BuildError) as raised:
        load_weights(model, wrong)
    message = str(raised.value)
    assert all(text in message for text in ("'model.norm.weight'", "'extra'", "has shape [3, 3]"))
    assert bits(model) == before
    with pytest.raises(SourceError):
        load_weights(model, source / "nowhere")
    assert bits(model) == before


def test_after_a_weight_that_is_not_finite_the_model_refuses_to_run_until_it_is_loaded(source: Path) -> None:
    plan = plan_of(source)
    model = constructed(LLAMA, plan)
    wrong = {name: tensor.clone() for name, tensor in state(source).items()}
    wrong["model.layers.1.mlp.up_proj.weight"][3, 4] = float("nan")
    norm = model.get_parameter("model.norm.weight")
    with pytest.raises(PolicyQuantError, match=r"holds nan at \[3, 4\]"):
        load_weights(model, wrong)
    assert model.get_parameter("model.norm.weight") is norm
    for layer in model.modules():
        if isinstance(layer, WeightLayer) and layer.num_experts is None:
            with pytest.raises(BuildError, match=r"loading this model failed.*holds nan"):
                layer(torch.zeros(1, layer.in_features, dtype=torch.long))
    with pytest.raises(BuildError, match="load it again"):
        model(IDS)
    load_weights(model, source)
    same(model, build(lambda: FAMILIES["llama"](LLAMA), policy=plan, source=source))


def test_a_layer_that_nothing_quantizes_is_at_none(source: Path) -> None:
    assert set(schemes(constructed(LLAMA, plan_of(source, {"default": "none"}))).values()) == {NONE}
