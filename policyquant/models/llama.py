"""Llama, and the dense families that share its layout: Mistral, Qwen2 and Qwen3."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import nn

from policyquant.layers.activation import SiluAndMul
from policyquant.layers.linear import MergedColumnParallelLinear, RowParallelLinear
from policyquant.models.config import DecoderConfig
from policyquant.models.decoder import DecoderForCausalLM, DecoderLayer
from policyquant.models.layer_arguments import LayerArguments
from policyquant.quantized_tensor import QuantizedTensor


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)), with gate and up in one layer."""

    def __init__(self, config: DecoderConfig, arguments: LayerArguments) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_up_proj = MergedColumnParallelLinear(
            hidden, {"gate_proj": inner, "up_proj": inner}, bias=config.mlp_bias, **arguments.of("gate_up_proj")
        )
        self.act_fn = SiluAndMul(**arguments.of("act_fn"))
        self.down_proj = RowParallelLinear(inner, hidden, bias=config.mlp_bias, **arguments.of("down_proj"))

    def forward(self, x: torch.Tensor | QuantizedTensor) -> torch.Tensor:
        """x [..., hidden] → [..., hidden]."""
        result: torch.Tensor = self.down_proj(self.act_fn(self.gate_up_proj(x)))
        return result


class LlamaDecoderLayer(DecoderLayer):
    """Attention and a gated MLP."""

    def __init__(self, config: DecoderConfig, index: int, arguments: LayerArguments) -> None:
        super().__init__(config, index, arguments)
        self.mlp = GatedMLP(config, arguments.under("mlp"))

    def feed_forward(self, x: torch.Tensor | QuantizedTensor) -> torch.Tensor:
        result: torch.Tensor = self.mlp(x)
        return result


class LlamaForCausalLM(DecoderForCausalLM):
    """Llama, Mistral, Qwen2 or Qwen3, by the `model_type` of its config."""

    layer: ClassVar[type[DecoderLayer]] = LlamaDecoderLayer
