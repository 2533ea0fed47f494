"""Layers that join a model after `build`: registered by hand, in a first forward, around built layers."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from policyquant import build, load_policy, read_plan, resolve
from policyquant.errors import BuildError
from policyquant.inventory.inventory import Inventory
from policyquant.layers.base import PolicyLayer
from policyquant.layers.linear import Linear, MergedColumnParallelLinear
from policyquant.layers.norm import RMSNorm

FP8 = torch.float8_e4m3fn
POLICY = {"layers": {"blocks.*": "fp8", "*.head": "int8_weight_only"}}
IDS = torch.tensor([[1, 2, 3, 4]])


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(x).relu())  # type: ignore[no-any-return]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(20, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(8, 20, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)  # type: ignore[no-any-return]


@pytest.fixture
def model() -> Any:
    torch.manual_seed(0)
    return build(Model, policy=POLICY, source=Model().state_dict())


def stored(layer: nn.Module) -> torch.dtype:
    return layer.state_dict()["weight"].dtype


def same(first: nn.Module, second: nn.Module) -> None:
    """Both hold the same tensors, to the bit."""
    one, other = first.state_dict(), second.state_dict()
    assert list(one) == list(other)
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype
        assert torch.equal(tensor.view(torch.uint8), other[name].view(torch.uint8)), name


@pytest.mark.parametrize("make", [nn.Linear, Linear])
@pytest.mark.parametrize(
    "register",
    [
        lambda block, layer: setattr(block, "extra", layer),
        lambda block, layer: block.add_module("extra", layer),
        lambda block, layer: block.register_module("extra", layer),
    ],
)
def test_a_new_layer_takes_the_method_that_the_policy_gives_to_its_name(
    model: Any, register: Callable[[nn.Module, nn.Module], None], make: type[nn.Linear]
) -> None:
    layer = make(8, 8)
    weight = layer.weight.detach().clone()
    register(model.blocks[1], layer)
    assert model.blocks[1].extra is layer
    assert isinstance(layer, PolicyLayer)
    assert layer.layer_name == "blocks.1.extra"
    assert stored(layer) == FP8
    assert model.state_dict()["blocks.1.extra.weight"].dtype == FP8
    torch.testing.assert_close(layer.quant_method.dequantize(layer), weight, rtol=0.07, atol=1e-3)


def test_a_block_that_is_appended_is_quantized_as_if_it_had_been_there_from_the_start(model: Any) -> None:
    late = Block()
    whole = Model()
    whole.load_state_dict({**whole.state_dict()})
    whole.blocks.append(copy.deepcopy(late))
    expected = build(lambda: _longer(3), policy=POLICY, source=whole.state_dict())
    model.blocks.append(late)
    same(late, expected.get_submodule("blocks.2"))
    assert model(IDS).shape == (1, 4, 20)


def _longer(blocks: int) -> Model:
    model = Model()
    model.blocks.extend(Block() for _ in range(blocks - 2))
    return model


def test_a_replaced_layer_has_the_scheme_of_its_name(model: Any) -> None:
    model.head = nn.Linear(8, 24, bias=False)
    assert stored(model.head) == torch.int8
    assert model(IDS).shape == (1, 4, 24)


def test_a_layer_that_the_policy_leaves_alone_is_left_as_it_is(model: Any) -> None:
    layer = nn.Linear(8, 8)
    weight = layer.weight
    model.plain = layer
    assert type(layer) is nn.Linear
    assert layer.weight is weight


def test_a_merged_layer_takes_its_method_for_all_its_parts(model: Any) -> None:
    model.blocks[0].merged = MergedColumnParallelLinear(8, {"gate_proj": 6, "up_proj": 6})
    assert stored(model.blocks[0].merged) == FP8


def test_a_layer_with_parts_that_the_policy_decides_apart_is_refused() -> None:
    policy = {
        "layers": [{"match": "blocks.*", "method": "fp8"}, {"match": "*.up_proj", "method": "none", "optional": True}]
    }
    model: Any = build(Model, policy=policy, source=Model().state_dict())
    with pytest.raises(BuildError, match=r"gate_proj.*up_proj|'blocks\.0\.merged'"):
        model.blocks[0].merged = MergedColumnParallelLinear(8, {"gate_proj": 6, "up_proj": 6})


class MakesItsLayerLate(Model):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        if not hasattr(self.blocks[0], "late"):
            self.blocks[0].late = Linear(8, 8)
        result: torch.Tensor = self.blocks[0].late(super().forward(ids)[..., :8])
        return result


def test_a_layer_registered_in_a_first_forward_takes_its_method() -> None:
    model: Any = build(MakesItsLayerLate, policy=POLICY, source=Model().state_dict())
    with torch.inference_mode():
        first = model(IDS)
    assert stored(model.blocks[0].late) == FP8
    with torch.inference_mode():
        assert torch.equal(model(IDS), first)


class UsesALayerOfNobody(Model):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return Linear(20, 4)(super().forward(ids))  # type: ignore[return-value]


def test_a_layer_made_in_forward_that_nobody_registers_says_where_it_was_made_and_what_to_do() -> None:
    model = build(UsesALayerOfNobody, policy=POLICY, source=Model().state_dict())
    with pytest.raises(
        BuildError, match=r"Linear made at .*test_late_layers\.py:\d+, while UsesALayerOfNobody"
    ) as raised:
        model(IDS)
    assert "Make it in `__init__`, or register it" in str(raised.value)
    assert UsesALayerOfNobody()(IDS).shape == (1, 4, 4)


class Lora(nn.Module):
    """An adapter as fine-tuning libraries put around a linear layer."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base
        self.a = nn.ModuleDict({"default": nn.Linear(base.in_features, rank, bias=False)})
        self.b = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.b(self.a["default"](x))  # type: ignore[no-any-return]


def test_an_adapter_around_a_built_layer_stays_as_it_is_made_and_trains(model: Any) -> None:
    before = model.state_dict()["blocks.0.up.weight"]
    model.requires_grad_(False)
    model.blocks[0].up = Lora(model.blocks[0].up)
    model.blocks[0].up.a["second"] = nn.Linear(8, 2, bias=False)
    assert stored(model.blocks[0].up.base) == FP8
    assert torch.equal(model.state_dict()["blocks.0.up.base.weight"].view(torch.uint8), before.view(torch.uint8))
    adapters = [model.blocks[0].up.a["default"], model.blocks[0].up.a["second"], model.blocks[0].up.b]
    assert [type(each) for each in adapters] == [nn.Linear] * 3
    model.blocks[0].up(torch.randn(3, 8)).sum().backward()
    assert adapters[0].weight.grad is not None


def test_an_adapter_can_be_taken_off_and_put_around_again(model: Any) -> None:
    base = model.blocks[0].up
    model.blocks[0].up = Lora(base)
    model.blocks[0].up = base
    model.blocks[0].up = Lora(Lora(base).base)
    assert type(model.blocks[0].up.b) is nn.Linear


def test_what_is_put_into_a_built_layer_stays_as_it_is_made(model: Any) -> None:
    model.blocks[0].up.adapter = nn.Linear(8, 2)
    assert type(model.blocks[0].up.adapter) is nn.Linear


def test_built_layers_that_move_take_nothing_new(model: Any) -> None:
    expected = model.state_dict()
    model.blocks = nn.ModuleList([model.blocks[1], model.blocks[0]])
    model.layers = nn.Sequential(*model.blocks)
    moved = model.state_dict()
    assert torch.equal(moved["blocks.0.up.weight_scale"], expected["blocks.1.up.weight_scale"])
    assert moved["blocks.0.up.weight"].data_ptr() == expected["blocks.1.up.weight"].data_ptr()


def test_a_copied_block_keeps_its_codes(model: Any) -> None:
    model.blocks.append(copy.deepcopy(model.blocks[0]))
    same(model.blocks[2], model.blocks[0])


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_of_a_model_are_exact_and_know_what_they_came_from(model: Any, copied: Callable[[Any], Any]) -> None:
    other = copied(model)
    same(model, other)
    with torch.no_grad():
        assert torch.equal(model(IDS), other(IDS))
    other.blocks[0].extra = nn.Linear(8, 8)
    assert stored(other.blocks[0].extra) == FP8
    assert not hasattr(model.blocks[0], "extra")
    model.blocks[0].extra = nn.Linear(8, 8)
    assert stored(model.blocks[0].extra) == FP8


def test_the_state_dict_and_what_keeps_memory_know_nothing_of_it(model: Any) -> None:
    import gc
    import weakref

    assert set(model.state_dict()) >= {"tokens.weight", "head.weight", "head.weight_scale"}
    assert not [name for name in model.state_dict() if "policyquant" in name]
    codes = weakref.ref(model.blocks[0].up._buffers["weight"])
    model.blocks[0].up = nn.Linear(8, 16)
    gc.collect()
    assert codes() is None


def test_a_model_without_a_policy_takes_layers_as_they_are() -> None:
    model: Any = build(Model, policy=None, source=Model().state_dict())
    model.blocks[0].extra = nn.Linear(8, 8)
    assert type(model.blocks[0].extra) is nn.Linear


def test_a_weight_that_is_not_finite_leaves_the_layer_and_the_model_as_they_were(model: Any) -> None:
    block = Block()
    with torch.no_grad():
        block.down.weight[1, 2] = float("nan")
    up = block.up.weight
    with pytest.raises(BuildError, match=r"'blocks\.2\.down\.weight' holds nan at \[1, 2\]"):
        model.blocks.append(block)
    assert len(model.blocks) == 2
    assert type(block.up) is nn.Linear
    assert block.up.weight is up
    model.other = block
    assert type(model.other.up) is nn.Linear


def test_a_layer_without_values_is_refused(model: Any) -> None:
    with pytest.raises(BuildError, match=r"Linear 'blocks\.0\.extra' gets fp8 .*, but holds no values"):
        model.blocks[0].extra = nn.Linear(8, 8, device="meta")


def test_a_layer_without_sizes_is_refused(model: Any) -> None:
    with pytest.raises(BuildError, match=r"LazyLinear 'extra': its 'weight' has no shape before a first forward"):
        model.extra = nn.LazyLinear(4)


def test_a_class_that_takes_no_method_is_refused(model: Any) -> None:
    class Scaled(nn.Linear):
        pass

    with pytest.raises(BuildError, match=r"Scaled 'blocks\.0\.up' gets fp8 .*, but its class takes no method"):
        model.blocks[0].up = Scaled(8, 16)


def test_a_prefix_that_is_not_the_name_is_refused_and_one_that_is_stays(model: Any) -> None:
    with pytest.raises(BuildError, match=r"'blocks\.0\.extra' was given prefix='blocks\.1\.extra'"):
        model.blocks[0].extra = Linear(8, 8, prefix="blocks.1.extra")
    model.blocks[1].extra = Linear(8, 8, prefix="blocks.1.extra")
    assert stored(model.blocks[1].extra) == FP8


def test_a_norm_takes_the_output_that_the_policy_gives_it() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = RMSNorm(8)
            self.proj = nn.Linear(8, 8)

    model: Any = build(Normed, policy={"layers": {"norm": {"output": "bf16"}}}, source=Normed().state_dict())
    model.norm = RMSNorm(8)
    assert model.norm(torch.randn(2, 8)).dtype == torch.bfloat16


def test_a_layer_that_would_change_a_decision_about_a_built_one_is_refused() -> None:
    policy = {"layers": {"blocks.*": "fp8", "blocks.{-1..-1}": "none"}}
    model: Any = build(Model, policy=policy, source=Model().state_dict())
    with pytest.raises(
        BuildError, match=r"'blocks\.1\.(up|down)' is built as none, and with 'blocks\.2\.(up|down)'"
    ) as raised:
        model.blocks.append(Block())
    assert "make the layer in `__init__`" in str(raised.value)
    assert len(model.blocks) == 2


def test_a_plan_from_a_file_decides_the_names_that_it_has_and_no_others(tmp_path: Any) -> None:
    state = Model().state_dict()
    tensors = [(name, tuple(tensor.shape), tensor.dtype) for name, tensor in state.items()]
    inventory = Inventory.from_tensors(tensors).with_classes({"blocks.0.up": "Linear", "blocks.0.down": "Linear"})
    plan = resolve(load_policy(POLICY), inventory)
    (tmp_path / "plan.json").write_text(plan.to_json())
    model: Any = build(Model, policy=read_plan(tmp_path / "plan.json"), source=state)
    model.head = nn.Linear(8, 24)
    assert stored(model.head) == torch.int8
    with pytest.raises(BuildError, match="read from a file and has no policy to decide about it; make the layer in"):
        model.blocks[0].extra = nn.Linear(8, 8)
    model.norm = nn.LayerNorm(8)
    model.blocks[0].up = Lora(model.blocks[0].up)


def test_a_renamed_model_names_new_layers_as_its_source_would() -> None:
    foreign = {name.replace("blocks.", "h."): tensor for name, tensor in Model().state_dict().items()}
    model: Any = build(Model, policy={"layers": {"h.*": "fp8"}}, source=foreign, rename={r"^h\.": "blocks."})
    model.blocks[0].extra = nn.Linear(8, 8)
    model.blocks.append(Block())
    model.other = nn.Linear(8, 8)
    assert [stored(each) for each in (model.blocks[0].extra, model.blocks[2].up)] == [FP8, FP8]
    assert type(model.other) is nn.Linear


def test_layers_that_join_one_after_another_are_all_planned() -> None:
    policy = {"layers": {"blocks.*": "fp8"}, "expect": {"layers": {"blocks.*": "fp8"}}}
    model: Any = build(Model, policy=policy, source=Model().state_dict())
    for _ in range(3):
        model.blocks.append(Block())
    assert {stored(block.up) for block in model.blocks} == {FP8}
