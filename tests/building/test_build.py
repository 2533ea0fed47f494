"""`build`: from a factory, a policy and a checkpoint to a model in which every layer has its own method."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from policyquant import Inventory, build, load_policy, resolve
from policyquant.building.targets import logical_state
from policyquant.errors import BuildError
from policyquant.layers.base import PolicyLayer
from policyquant.models.families import model_factory
from policyquant.quantized_tensor import QuantizedTensor
from tests.building.stored_forms import LLAMA as UNTIED
from tests.building.stored_forms import MIXTRAL

LLAMA = {**UNTIED, "tie_word_embeddings": True}
IDS = torch.arange(12).reshape(2, 6)


def checkpoint(directory: Path, config: Mapping[str, Any]) -> Path:
    """A checkpoint of random BF16 weights, named as the family's are."""
    torch.manual_seed(0)
    state = logical_state(model_factory(config)())
    save_file({name: tensor.to(torch.bfloat16) for name, tensor in state.items()}, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return checkpoint(tmp_path, LLAMA)


@pytest.fixture
def mixtral(tmp_path: Path) -> Path:
    return checkpoint(tmp_path, MIXTRAL)


def stored_bytes(model: nn.Module) -> int:
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in model.state_dict().values()}.values())


def named_output(model: nn.Module, name: str) -> Any:
    """What the layer of this name returned when the model ran."""
    seen: list[Any] = []
    handle = model.get_submodule(name).register_forward_hook(lambda _m, _i, output: seen.append(output))
    with torch.no_grad():
        model(IDS)
    handle.remove()
    return seen[0]


@pytest.mark.parametrize("policy", [None, {"default": "none"}])
def test_without_quantization_the_model_is_the_checkpoint_to_the_bit(llama: Path, policy: Any) -> None:
    model = build(model_factory(LLAMA), policy=policy, source=llama)
    plain = model_factory(LLAMA)().to(torch.bfloat16)
    plain.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert torch.equal(model(IDS), plain(IDS))
    assert {tensor.dtype for tensor in model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("policy", ["fp8-dynamic", "int8-weight-only"])
@pytest.mark.parametrize("config", [LLAMA, MIXTRAL], ids=["llama", "mixtral"])
def test_stored_bytes_are_those_of_the_plan(tmp_path: Path, config: Mapping[str, Any], policy: str) -> None:
    source = checkpoint(tmp_path, config)
    plan = resolve(load_policy(policy), Inventory.open(source))
    assert stored_bytes(build(model_factory(config), policy=policy, source=source)) == plan.total.bytes_after


def test_a_plan_builds_what_its_policy_builds(llama: Path) -> None:
    plan = resolve(load_policy("fp8-dynamic"), Inventory.open(llama))
    of_plan = build(model_factory(LLAMA), policy=plan, source=llama).state_dict()
    of_policy = build(model_factory(LLAMA), policy="fp8-dynamic", source=llama).state_dict()
    assert list(of_plan) == list(of_policy)
    for name, tensor in of_plan.items():
        assert torch.equal(tensor.view(torch.uint8), of_policy[name].view(torch.uint8)), name


def test_a_plan_of_another_model_is_refused(llama: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    plan = resolve(load_policy("fp8-dynamic"), Inventory.open(checkpoint(other, MIXTRAL)))
    with pytest.raises(BuildError, match="the plan is for other and does not fit"):
        build(model_factory(LLAMA), policy=plan, source=llama)


def test_experts_in_fp8_beside_attention_and_router_in_bf16(mixtral: Path) -> None:
    policy = {"layers": {"decoder.*.moe": "fp8", "*.qkv_proj": "none"}}
    plan = resolve(load_policy(policy), Inventory.open(mixtral))
    model = build(model_factory(MIXTRAL), policy=policy, source=mixtral)
    block = model.get_submodule("model.layers.1")
    built = {
        "block_sparse_moe.experts.gate_up_proj": "block_sparse_moe.experts.3.w1",
        "block_sparse_moe.experts.down_proj": "block_sparse_moe.experts.0.w2",
        "block_sparse_moe.gate": "block_sparse_moe.gate",
        "self_attn.qkv_proj": "self_attn.k_proj",
    }
    for module, layer in built.items():
        found = block.get_submodule(module)
        assert isinstance(found, PolicyLayer)
        assert found.scheme == plan[f"model.layers.1.{layer}"].scheme
    assert block.get_submodule("self_attn.qkv_proj").weight.dtype == torch.bfloat16
    assert model.state_dict()["model.layers.1.block_sparse_moe.experts.down_proj.weight"].dtype == torch.float8_e4m3fn


def test_codes_that_are_handed_on_change_no_bit_of_the_result(llama: Path) -> None:
    apart = {"layers": {"*": "fp8"}}
    handed = {"layers": {"*": "fp8", "decoder.*.mlp.act": {"output": "fp8"}, "*.input_layernorm": {"output": "fp8"}}}
    model = build(model_factory(LLAMA), policy=handed, source=llama)
    assert isinstance(named_output(model, "model.layers.0.mlp.act_fn"), QuantizedTensor)
    assert isinstance(named_output(model, "model.layers.1.input_layernorm"), QuantizedTensor)
    assert named_output(model, "model.layers.1.self_attn.qkv_proj").dtype == torch.bfloat16
    with torch.no_grad():
        assert torch.equal(model(IDS), build(model_factory(LLAMA), policy=apart, source=llama)(IDS))


def test_an_attention_takes_its_cache_from_the_plan(llama: Path) -> None:
    model = build(model_factory(LLAMA), policy={"layers": {"*.1.self_attn": {"kv_cache": "fp8"}}}, source=llama)
    caches: Any = model
    first, second = caches.new_caches(1, 16)
    of_scales = 4
    assert (second.nbytes - of_scales) * 2 == first.nbytes


def test_a_quantized_embedding_does_the_work_of_the_head_that_is_tied_to_it(llama: Path) -> None:
    policy = {"layers": {"*.embed_tokens": "int8_weight_only", "lm_head": "int8_weight_only"}}
    model = build(model_factory(LLAMA), policy=policy, source=llama)
    assert "lm_head.weight" not in model.state_dict()
    plain = build(model_factory(LLAMA), policy=None, source=llama)
    with torch.no_grad():
        assert (model(IDS) - plain(IDS)).norm() <= 0.02 * plain(IDS).norm()


class Tied(nn.Module):
    """As somebody writes a model who never heard of policies."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(20, 8)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(2)])
        self.norm = nn.LayerNorm(8)
        self.register_buffer("mask", torch.ones(4, 4).tril(), persistent=False)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = x + block(self.mask @ x)
        result: torch.Tensor = self.head(self.norm(x))
        return result


def test_a_strangers_model_is_built_from_its_own_state_dict() -> None:
    torch.manual_seed(0)
    trained = Tied()
    model = build(Tied, policy={"layers": {"blocks.*.0": "fp8"}}, source=trained.state_dict())
    assert [module.weight.dtype for module in model.modules() if isinstance(module, nn.Linear)] == [torch.float32] * 5
    assert model.state_dict()["blocks.1.0.weight"].dtype == torch.float8_e4m3fn
    assert model.get_submodule("head").weight is model.get_submodule("tokens").weight
    ids = torch.tensor([[1, 2, 3, 4]])
    with torch.no_grad():
        torch.testing.assert_close(model(ids), trained(ids), rtol=0.2, atol=0.2)


def test_without_a_source_the_weights_are_those_that_the_factory_gives() -> None:
    def factory() -> nn.Module:
        torch.manual_seed(3)
        return Tied()

    model = build(factory, policy=None)
    ids = torch.tensor([[1, 2, 3, 4]])
    assert torch.equal(model(ids), factory()(ids))


def test_renamed_tensors_find_their_modules() -> None:
    trained = Tied().state_dict()
    foreign = {name.replace("blocks.", "h."): tensor for name, tensor in trained.items()}
    model = build(Tied, policy={"layers": {"h.*.2": "fp8"}}, source=foreign, rename={r"^h\.": "blocks."})
    assert model.state_dict()["blocks.0.2.weight"].dtype == torch.float8_e4m3fn


def without(name: str) -> Callable[[dict[str, torch.Tensor]], object]:
    return lambda state: state.pop(name)


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (without("norm.bias"), r"'norm\.bias' is in the model, but the source has no such tensor"),
        (without("blocks.0.2.bias"), r"blocks\.0\.2: no bias is stored"),
        (lambda state: state.update(extra=torch.zeros(2)), "'extra' is in the source, but nothing in the model"),
        (lambda state: state.update({"norm.weight": torch.ones(9)}), r"has shape \[9\]; the model has \[8\]"),
    ],
)
def test_what_does_not_fit_is_one_error_with_all_of_it(
    spoil: Callable[[dict[str, torch.Tensor]], object], problem: str
) -> None:
    state = dict(Tied().state_dict())
    spoil(state)
    state["another"] = torch.zeros(1)
    with pytest.raises(BuildError, match=problem) as raised:
        build(Tied, policy={"layers": {"blocks.*.2": "fp8"}}, source=state)
    assert "2 problems" in str(raised.value)


def test_errors_of_the_plan_stop_before_anything_is_read(llama: Path) -> None:
    with pytest.raises(BuildError, match=r"PQ101: .*no_such_layer"):
        build(model_factory(LLAMA), policy={"layers": {"*.no_such_layer": "fp8"}}, source=llama)


def test_a_weight_that_is_not_finite_is_named(llama: Path) -> None:
    state = logical_state(build(model_factory(LLAMA), policy=None, source=llama))
    state["model.layers.1.mlp.up_proj.weight"][3, 4] = float("nan")
    with pytest.raises(Exception, match=r"'model\.layers\.1\.mlp\.up_proj\.weight' holds nan at \[3, 4\]"):
        build(model_factory(LLAMA), policy="fp8-dynamic", source=state)
