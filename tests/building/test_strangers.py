"""A model with everything that people keep in modules, built whole: what the factory makes, what the source stores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from policyquant import build
from policyquant.errors import BuildError
from policyquant.layers.base import PolicyLayer
from policyquant.layers.linear import Linear, MergedColumnParallelLinear

FP8 = torch.float8_e4m3fn
IDS = torch.tensor([[1, 5, 2, 7, 3]])


class Attention(nn.Module):
    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        inverse = 1.0 / (100 ** (torch.arange(0, width, 2).float() / width))
        angles = torch.outer(torch.arange(length).float(), inverse)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin())
        self.register_buffer("mask", torch.full((length, length), float("-inf")).triu(1), persistent=False)
        self.register_buffer("unused", None)
        self.slopes = torch.pow(2.0, -torch.arange(1, length + 1).float())
        self.constant = np.linspace(0.5, 1, length, dtype=np.float32)
        self.tables = {"phase": torch.polar(torch.ones(3), torch.arange(3).float())}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        turned = torch.cat((q[..., ::2] * self.cos - q[..., 1::2] * self.sin, k[..., ::2] * self.cos), dim=-1)
        scores = turned @ torch.cat((k, k[..., : k.shape[-1] // 2]), dim=-1)[..., : turned.shape[-1]].mT + self.mask
        mixed: torch.Tensor = (
            self.out((scores * self.slopes).softmax(-1) @ v) * torch.from_numpy(self.constant)[:, None]
        )
        return mixed


class Model(nn.Module):
    """Written by somebody who never heard of policies."""

    def __init__(self, width: int = 8, length: int = 5) -> None:
        super().__init__()
        self.tokens = nn.Embedding(16, width, padding_idx=0)
        self.positions = nn.Parameter(torch.zeros(1, length, width))
        self.blocks = nn.ModuleList(Attention(width, length) for _ in range(2))
        self.experts = nn.ModuleDict(
            {"a": nn.Linear(width, width), "b": nn.Sequential(nn.Linear(width, width), nn.ReLU())}
        )
        self.again = self.experts["a"]
        self.gains = nn.ParameterList([nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))])
        self.rates = [rate.item() for rate in torch.linspace(0, 0.1, 4)]
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 16, bias=False)
        self.head.weight = self.tokens.weight
        self.apply(self._initialise)
        for name, parameter in self.named_parameters():
            if name.endswith("out.weight"):
                nn.init.normal_(parameter, std=0.02 / len(self.blocks) ** 0.5)

    def _initialise(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            module.weight.data.normal_(mean=0.0, std=0.5)
        if isinstance(module, nn.Linear) and module.bias is not None:
            module.bias.data.zero_()
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            module.weight.data[module.padding_idx].zero_()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions
        for gain, rate, block in zip(self.gains, self.rates, self.blocks, strict=False):
            x = x + (1 - rate) * gain * block(self.norm(x))
        return self.head(self.experts["b"](x) + self.again(x))  # type: ignore[no-any-return]


POLICIES: list[Any] = [
    None,
    {"layers": {"blocks.*": "fp8"}},
    {"layers": {"blocks.*": "int8_weight_only", "{experts.*,again}": "fp8"}},
    {"layers": {"{tokens,head}": "int8_weight_only"}},
]


@pytest.fixture(scope="module")
def trained() -> Model:
    torch.manual_seed(0)
    return Model()


def tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors of a model, wherever they are kept, but for parameters."""
    for name, module in model.named_modules():
        yield from ((f"{name}.{key}", buffer) for key, buffer in module._buffers.items() if buffer is not None)
        for key, value in vars(module).items():
            values = value.values() if key == "tables" else [value]
            yield from ((f"{name}.{key}", each) for each in values if isinstance(each, torch.Tensor))


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_nothing_is_left_on_meta_and_what_is_not_loaded_has_the_bits_of_plain_construction(
    policy: Any, trained: Model
) -> None:
    model: Any = build(Model, policy=policy, source=trained.state_dict())
    everything = [*model.parameters(), *(tensor for _, tensor in tensors(model))]
    assert not any(tensor.is_meta for tensor in everything)
    built = dict(tensors(model))
    for name, tensor in tensors(trained):
        assert torch.equal(built[name], tensor), name
    for block, plain in zip(model.blocks, trained.blocks, strict=True):
        assert np.array_equal(block.constant, plain.constant)
    assert model.rates == trained.rates
    assert model.again is model.experts["a"]
    assert model(IDS).isfinite().all()


def test_without_a_policy_it_computes_the_same_to_the_bit(trained: Model) -> None:
    model: Any = build(Model, policy=None, source=trained.state_dict())
    with torch.no_grad():
        assert torch.equal(model(IDS), trained(IDS))
    assert model.head.weight is model.tokens.weight
    assert set(model.state_dict()) == set(trained.state_dict())


def test_each_layer_has_the_method_of_its_name(trained: Model) -> None:
    model = build(
        Model, policy={"layers": {"*.qkv": "fp8", "experts.b.*": "int8_weight_only"}}, source=trained.state_dict()
    )
    stored = {name: tensor.dtype for name, tensor in model.state_dict().items() if name.endswith(".weight")}
    assert {name for name, dtype in stored.items() if dtype == FP8} == {"blocks.0.qkv.weight", "blocks.1.qkv.weight"}
    assert {name for name, dtype in stored.items() if dtype == torch.int8} == {"experts.b.0.weight"}


def test_parameters_own_their_memory(trained: Model) -> None:
    state = trained.state_dict()
    theirs = {tensor.untyped_storage().data_ptr() for tensor in state.values()}
    model = build(Model, policy=None, source=state)
    assert not theirs & {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}


def test_what_trains_and_what_is_frozen_stays_so(trained: Model) -> None:
    def factory() -> nn.Module:
        model = Model()
        model.positions.requires_grad_(False)
        model.experts["b"][0].bias.requires_grad_(False)  # type: ignore[index,union-attr]
        return model

    model = build(factory, policy={"layers": {"experts.b.*": "fp8"}}, source=trained.state_dict())
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen == {"positions", "experts.b.0.bias"}


class Prefixed(nn.Module):
    """Names some of its layers by hand, as engines' models do."""

    def __init__(self, prefix: str = "up", part: str = "block.merged") -> None:
        super().__init__()
        self.up = Linear(8, 16, prefix=prefix)
        self.block = nn.ModuleDict({"merged": MergedColumnParallelLinear(16, {"gate": 8, "value": 8}, prefix=part)})


def test_a_prefix_that_is_the_name_is_honoured() -> None:
    state = build(Prefixed, policy=None).state_dict()
    source = {name: tensor for name, tensor in state.items() if name.startswith("up")}
    for row, part in enumerate(("gate", "value")):
        source |= {
            f"block.{part}.{key}": state[f"block.merged.{key}"][8 * row : 8 * row + 8] for key in ("weight", "bias")
        }
    model = build(Prefixed, policy={"layers": {"up": "fp8", "block.*": "fp8"}}, source=source)
    layers = {name: module for name, module in model.named_modules() if isinstance(module, PolicyLayer)}
    assert {name: layer.layer_name for name, layer in layers.items()} == {"up": "up", "block.merged": "block.merged"}
    assert {layer.scheme.method for layer in layers.values()} == {"fp8"}


@pytest.mark.parametrize(
    ("prefix", "part", "message"),
    [
        ("down", "block.merged", r"Linear was given prefix='down', but in the tree it is 'up'"),
        (
            "up",
            "merged",
            r"MergedColumnParallelLinear was given prefix='merged', but in the tree it is 'block\.merged'",
        ),
        ("block.merged", "up", r"prefix='block\.merged', but in the tree it is 'up'.*\n.*prefix='up', but in the tree"),
    ],
)
def test_a_prefix_that_contradicts_the_tree_is_an_error_that_names_both(prefix: str, part: str, message: str) -> None:
    with pytest.raises(BuildError, match=message):
        build(
            lambda: Prefixed(prefix, part),
            policy={"layers": {"up": "fp8"}},
            source=build(Prefixed, policy=None).state_dict(),
        )


def test_without_a_source_a_wrong_prefix_is_an_error_too() -> None:
    with pytest.raises(BuildError, match=r"Linear was given prefix='down', but in the tree it is 'up'"):
        build(lambda: Prefixed("down"), policy={"default": "fp8"})


def test_a_tied_head_of_a_stranger_is_quantized_once_with_its_embedding(trained: Model) -> None:
    model: Any = build(Model, policy={"layers": {"tokens": "int8_weight_only"}}, source=trained.state_dict())
    assert [name for name, tensor in model.state_dict().items() if tensor.dtype == torch.int8] == ["tokens.weight"]
    with torch.no_grad():
        torch.testing.assert_close(model(IDS), trained(IDS), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("method", ["none", "int8_weight_only"])
def test_what_a_tied_head_of_a_stranger_hands_on_is_its_own_affair(trained: Model, method: str) -> None:
    layers = {"tokens": method, "head": {"output": "bfloat16"}}
    model: Any = build(Model, policy={"layers": layers}, source=trained.state_dict())
    assert model(IDS).dtype == torch.bfloat16
    assert model.tokens(IDS).dtype == torch.float32


def test_two_decisions_about_one_tied_weight_are_an_error_that_names_both(trained: Model) -> None:
    policy = {"layers": {"tokens": "int8_weight_only", "head": "fp8"}}
    with pytest.raises(BuildError, match=r"(?s)tokens.*head|head.*tokens") as raised:
        build(Model, policy=policy, source=trained.state_dict())
    assert "untie" in str(raised.value)


def test_two_linears_that_share_a_weight_are_refused_before_anything_is_loaded() -> None:
    def factory() -> nn.Module:
        model = nn.ModuleDict({"first": nn.Linear(8, 8), "second": nn.Linear(8, 8)})
        model["second"].weight = model["first"].weight
        return model

    def never(done: int, total: int, name: str) -> None:
        raise AssertionError(name)

    policy = {"layers": {"first": "fp8"}}
    with pytest.raises(BuildError, match=r"'first' gets fp8 .*, but shares its weight with a Linear; .* method 'none'"):
        build(factory, policy=policy, progress=never)


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature:UserWarning")
def test_without_a_source_a_lazy_layer_is_refused_by_name() -> None:
    with pytest.raises(BuildError, match=r"LazyLinear '0': its 'weight' has no shape before a first forward"):
        build(lambda: nn.Sequential(nn.LazyLinear(4)), policy={"default": "fp8"})
