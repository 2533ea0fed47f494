"""Families whose layers hold experts: Mixtral and Qwen3-MoE. The rest is Llama's layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import nn

from policyquant.errors import PolicyQuantError
from policyquant.layers.linear import Linear
from policyquant.layers.moe import FusedMoE
from policyquant.models.config import DecoderConfig
from policyquant.models.decoder import DecoderForCausalLM, DecoderLayer
from policyquant.models.layer_arguments import LayerArguments
from policyquant.models.llama import GatedMLP
from policyquant.quantized_tensor import QuantizedTensor


class SparseMLP(nn.Module):
    """A router (`gate`) and the experts among which it chooses; `parts` are the names of an expert's three matrices."""

    def __init__(self, config: DecoderConfig, arguments: LayerArguments, parts: Sequence[str]) -> None:
        super().__init__()
        sparse = config.experts
        if sparse is None:
            raise PolicyQuantError(f"config.json: a model of type {config.model_type!r} has no experts")
        self.gate = Linear(config.hidden_size, sparse.num_experts, bias=False, **arguments.of("gate"))
        self.experts = FusedMoE(
            sparse.num_experts,
            sparse.top_k,
            config.hidden_size,
            sparse.intermediate_size,
            parts=parts,
            renormalize=sparse.renormalize,
            **arguments.of("experts"),
        )

    def forward(self, x: torch.Tensor | QuantizedTensor) -> torch.Tensor:
        """x [..., hidden] → [..., hidden]."""
        result: torch.Tensor = self.experts(x, self.gate(x))
        return result


class MixtralDecoderLayer(DecoderLayer):
    """Attention and experts."""

    def __init__(self, config: DecoderConfig, index: int, arguments: LayerArguments) -> None:
        super().__init__(config, index, arguments)
        self.block_sparse_moe = SparseMLP(config, arguments.under("block_sparse_moe"), ("w1", "w3", "w2"))

    def feed_forward(self, x: torch.Tensor | QuantizedTensor) -> torch.Tensor:
        result: torch.Tensor = self.block_sparse_moe(x)
        return result


class MixtralForCausalLM(DecoderForCausalLM):
    """Mixtral."""

    layer: ClassVar[type[DecoderLayer]] = MixtralDecoderLayer


class Qwen3MoeDecoderLayer(DecoderLayer):
    """Attention, and experts or, in the layers that the config leaves dense, a gated MLP."""

    def __init__(self, config: DecoderConfig, index: int, arguments: LayerArguments) -> None:
        super().__init__(config, index, arguments)
        mlp = arguments.under("mlp")
        self.mlp: SparseMLP | GatedMLP
        if config.experts is not None and index in config.experts.layers:
            self.mlp = SparseMLP(config, mlp, ("gate_proj", "up_proj", "down_proj"))
        else:
            self.mlp = GatedMLP(config, mlp)

    def feed_forward(self, x: torch.Tensor | QuantizedTensor) -> torch.Tensor:
        result: torch.Tensor = self.mlp(x)
        return result


class Qwen3MoeForCausalLM(DecoderForCausalLM):
    """Qwen3-MoE."""

    layer: ClassVar[type[DecoderLayer]] = Qwen3MoeDecoderLayer
