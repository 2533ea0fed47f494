"""One norm feeds a router, experts and shared experts, one feeds q, k and v: quantized once, and read as codes.

The model is put together from the package's layers as somebody writes a model of their own; its checkpoint is named as
Qwen2-MoE's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from policyquant import Inventory, PlanConfig, build, load_policy, load_weights, resolve
from policyquant.building.targets import logical_state
from policyquant.layers.linear import Linear
from policyquant.layers.moe import FusedMoE
from policyquant.models.config import DecoderConfig
from policyquant.models.decoder import DecoderForCausalLM, DecoderLayer
from policyquant.models.layer_arguments import LayerArguments
from policyquant.models.llama import GatedMLP
from policyquant.quantized_tensor import QuantizedTensor
from tests.building.stored_forms import SIZES
from tests.building.test_build import IDS, named_output
from tests.methods.test_no_fake_quantization import QUANTIZERS, calls

LAYERS = int(SIZES["num_hidden_layers"])
CONFIG: Mapping[str, Any] = {
    "model_type": "llama",
    "architectures": ["Qwen2MoeForCausalLM"],
    "tie_word_embeddings": False,
    **SIZES,
}
STORED: Mapping[str, Any] = {**CONFIG, "model_type": "qwen2_moe", "num_experts": 4}


class SharedExpert(nn.Module):
    """An expert that every token goes through, as far as its gate lets it."""

    def __init__(self, config: DecoderConfig, arguments: LayerArguments) -> None:
        super().__init__()
        self.gate = Linear(config.hidden_size, 1, bias=False, **arguments.of("gate"))
        self.expert = GatedMLP(config, arguments.under("expert"))

    def forward(self, x: torch.Tensor | QuantizedTensor) -> torch.Tensor:
        return self.gate(x).sigmoid() * self.expert(x)  # type: ignore[no-any-return,operator,union-attr]


class SharedMLP(nn.Module):
    """A router, experts among which it chooses, and the shared one."""

    def __init__(self, config: DecoderConfig, arguments: LayerArguments) -> None:
        super().__init__()
        self.gate = Linear(config.hidden_size, 4, bias=False, **arguments.of("gate"))
        shared = SharedExpert(config, arguments.under("experts.shared_experts"))
        self.experts = FusedMoE(4, 2, config.hidden_size, 24, shared_experts=shared, **arguments.of("experts"))

    def forward(self, x: torch.Tensor | QuantizedTensor) -> torch.Tensor:
        return self.experts(x, self.gate(x))  # type: ignore[no-any-return]


class Layer(DecoderLayer):
    def __init__(self, config: DecoderConfig, index: int, arguments: LayerArguments) -> None:
        super().__init__(config, index, arguments)
        self.mlp = SharedMLP(config, arguments.under("mlp"))

    def feed_forward(self, x: torch.Tensor | QuantizedTensor) -> torch.Tensor:
        return self.mlp(x)  # type: ignore[no-any-return]


class Model(DecoderForCausalLM):
    layer: ClassVar[type[DecoderLayer]] = Layer


RENAME = {
    r"mlp\.shared_expert\.": "mlp.experts.shared_experts.expert.",
    r"mlp\.shared_expert_gate\.": "mlp.experts.shared_experts.gate.",
}
APART: Mapping[str, Any] = {
    "layers": {"*": "fp8", "*.mlp.{gate,shared_expert_gate}": "fp8"},
    "expect": {"layers": {"decoder.*.moe.router": "fp8", "*.qkv_proj": "fp8", "decoder.*.moe.shared_experts": "fp8"}},
}
HANDED: Mapping[str, Any] = {
    **APART,
    "layers": {
        **APART["layers"],
        "{*.input_layernorm,*.post_attention_layernorm}": {"output": "fp8"},
        "decoder.*.moe.experts.act": {"output": "fp8"},
        "decoder.*.moe.shared_experts.act": {"output": "fp8"},
    },
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    state = {
        name.replace("experts.shared_experts.expert.", "shared_expert.").replace(
            "experts.shared_experts.gate.", "shared_expert_gate."
        ): tensor.to(torch.bfloat16)
        for name, tensor in logical_state(Model(CONFIG)).items()
    }
    save_file(state, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(STORED))
    return tmp_path


def built(policy: Any, source: Path) -> nn.Module:
    return build(lambda: Model(CONFIG), policy=policy, source=source, rename=RENAME)


FUSED = (
    "rms_norm_per_token_fp8_quant",
    "fused_add_rms_norm_per_token_fp8_quant",
    "gated_activation_per_token_fp8_quant",
)
"""Operators that quantize what they compute."""


def quantizations(model: nn.Module) -> int:
    with torch.no_grad(), calls(*QUANTIZERS, *FUSED) as seen:
        model(IDS)
    return len(seen)


def test_results_are_those_of_quantizing_in_each_reader_to_the_bit(source: Path) -> None:
    with torch.no_grad():
        assert torch.equal(built(HANDED, source)(IDS), built(APART, source)(IDS))


def test_each_activation_is_quantized_once(source: Path) -> None:
    # Apart: qkv, o, the router, the shared expert's gate, gate and up of the experts and of the shared one, down of
    # both. Handed on: both norms, o, and both activations.
    assert quantizations(built(APART, source)) == 8 * LAYERS
    assert quantizations(built(HANDED, source)) == 5 * LAYERS


def test_norms_hand_on_codes_and_what_reads_them_goes_back_to_bfloat16(source: Path) -> None:
    model = built(HANDED, source)
    block = "model.layers.1"
    for name in (
        "input_layernorm",
        "mlp.experts.act",
        "mlp.experts.shared_experts.expert.act_fn",
    ):
        assert isinstance(named_output(model, f"{block}.{name}"), QuantizedTensor), name
    codes, total = named_output(model, f"{block}.post_attention_layernorm")
    assert isinstance(codes, QuantizedTensor)
    assert total.dtype == torch.bfloat16
    for name in ("self_attn.qkv_proj", "mlp.gate", "mlp.experts", "mlp.experts.shared_experts"):
        assert named_output(model, f"{block}.{name}").dtype == torch.bfloat16, name


def test_layers_constructed_with_the_plan_hand_on_the_same(source: Path) -> None:
    renamed = built(HANDED, source)
    plan = resolve(load_policy(HANDED), Inventory.open(source))
    model = Model(CONFIG, quant_config=PlanConfig(plan, rename=RENAME))
    load_weights(model, source, RENAME)
    with torch.no_grad():
        assert torch.equal(model(IDS), renamed(IDS))
    assert quantizations(model) == 5 * LAYERS
