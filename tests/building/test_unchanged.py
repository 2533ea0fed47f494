"""Without a policy, or with one that quantizes nothing, a built model is its factory's with the source's weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from policyquant import build
from policyquant.layers.linear import Linear
from tests.building.test_build import Tied
from tests.inventory.transformers_models import OF_FAMILIES

IDS = torch.tensor([[1, 2, 3, 4]])
NOTHING = pytest.mark.parametrize("policy", [None, {"default": "none"}, {"layers": {"*": "none"}}], ids=str)


class Vision(nn.Module):
    """Convolutions, batch norm with its running statistics, and a transformer of torch's own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, bias=False)
        self.bn = nn.BatchNorm2d(8)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
        self.token = nn.Parameter(torch.randn(1, 1, 8))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.bn(self.conv(images)).flatten(2).transpose(1, 2)
        return self.encoder(torch.cat((self.token.expand(len(x), -1, -1), x), dim=1))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """Weights that no layer of a policy is, and a sparse embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(20, 8, padding_idx=0)
        self.lstm = nn.LSTM(8, 8, num_layers=2, batch_first=True, bidirectional=True)
        self.out = nn.utils.parametrizations.weight_norm(nn.Linear(16, 4))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(self.tokens(ids))[0])  # type: ignore[no-any-return]


@NOTHING
@pytest.mark.parametrize(
    ("factory", "given"),
    [(Tied, IDS), (Recurrent, IDS), (Vision, torch.randn(2, 3, 5, 5))],
    ids=["tied", "recurrent", "vision"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_strangers_model_computes_the_same_to_the_bit(
    factory: Callable[[], nn.Module], given: torch.Tensor, dtype: torch.dtype, policy: Any
) -> None:
    torch.manual_seed(0)
    plain = factory().to(dtype).eval()
    if isinstance(plain, Vision):
        plain.bn.running_mean.normal_()
    given = given.to(dtype) if given.is_floating_point() else given
    before = {name: tensor.clone() for name, tensor in plain.state_dict().items()}
    model = build(lambda: factory().to(dtype), policy=policy, source=plain.state_dict()).eval()
    assert {name: type(module).__qualname__ for name, module in model.named_modules()} == {
        name: type(module).__qualname__ for name, module in plain.named_modules()
    }
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    with torch.no_grad():
        assert torch.equal(model(given), plain(given))


@NOTHING
def test_a_memory_format_stays_what_the_factory_chose(policy: Any) -> None:
    def factory() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)).to(memory_format=torch.channels_last)

    plain = factory()
    model = build(factory, policy=policy, source=plain.state_dict())
    images = torch.randn(1, 3, 9, 9)
    assert [p.stride() for p in model.parameters()] == [p.stride() for p in plain.parameters()]
    assert torch.equal(model(images), plain(images))


@pytest.mark.parametrize("source", ["of the factory", "of a checkpoint"])
@pytest.mark.parametrize("method", ["none", "fp8"])
def test_what_an_author_set_on_a_parameter_stays(method: str, source: str) -> None:
    def factory() -> nn.Module:
        model = nn.Sequential(nn.Linear(8, 8), Linear(8, 8), nn.LayerNorm(8))
        for parameter in model.parameters():
            parameter.weight_decay = 0.0  # type: ignore[attr-defined]
        return model

    weights = None if source == "of the factory" else factory().state_dict()
    model = build(factory, policy={"layers": {"{0,1}": method}}, source=weights)
    assert [parameter.weight_decay for parameter in model.parameters()] == [0.0] * (6 if method == "none" else 4)


@pytest.mark.slow
@pytest.mark.parametrize("policy", [None, {"default": "none"}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["Llama", "Llama, tied", "Qwen2", "Qwen3", "GPT-2", "Mixtral", "Qwen3-MoE", "BERT"])
def test_a_model_of_transformers_computes_the_same_to_the_bit(
    name: str, dtype: torch.dtype, policy: Any, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    config_class, model_class, arguments = OF_FAMILIES[name]
    config = getattr(transformers, config_class)(**arguments)
    torch.manual_seed(0)
    getattr(transformers, model_class)(config).to(dtype).save_pretrained(tmp_path)
    # Not `to(dtype)`: that rounds rotary frequencies, which neither transformers nor a build does when it loads.
    plain = getattr(transformers, model_class).from_pretrained(tmp_path, dtype=dtype).eval()
    model: Any = build(lambda: getattr(transformers, model_class)(config), policy=policy, source=tmp_path).eval()
    ids = torch.arange(24).reshape(2, 12)
    with torch.no_grad():
        expected, found = plain(ids, output_hidden_states=True), model(ids, output_hidden_states=True)
    assert torch.equal(found[0], expected[0])
    assert all(torch.equal(one, other) for one, other in zip(found.hidden_states, expected.hidden_states, strict=True))
