"""The decoder that all families share; they differ in what follows attention, which a subclass of the layer brings.

Modules are named as transformers names them in checkpoints, but for members that are merged into one layer (`qkv_proj`,
`gate_up_proj`). The order of the arithmetic is that of transformers, so that plain models agree with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, cast

import torch
from torch import nn

from policyquant.errors import PolicyQuantError
from policyquant.layers.attention import Attention, KVCache
from policyquant.layers.base import QuantConfig
from policyquant.layers.embedding import ParallelLMHead, VocabParallelEmbedding
from policyquant.layers.linear import QKVParallelLinear, RowParallelLinear
from policyquant.layers.norm import RMSNorm
from policyquant.models.config import DecoderConfig, read_config
from policyquant.models.layer_arguments import LayerArguments
from policyquant.models.rotary import RotaryEmbedding, rotate
from policyquant.quantized_tensor import QuantizedTensor


class SelfAttention(nn.Module):
    """Projections, rotary positions and attention of layer `index`; Qwen3 normalizes each query and key head first."""

    def __init__(self, config: DecoderConfig, index: int, arguments: LayerArguments) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.rows = [heads * self.head_dim, kv_heads * self.head_dim, kv_heads * self.head_dim]
        self.qkv_proj = QKVParallelLinear(
            config.hidden_size, self.head_dim, heads, kv_heads, bias=config.qkv_bias, **arguments.of("qkv_proj")
        )
        self.o_proj = RowParallelLinear(
            heads * self.head_dim, config.hidden_size, bias=config.output_bias, **arguments.of("o_proj")
        )
        self.attn = Attention(
            heads,
            self.head_dim,
            kv_heads,
            sliding_window=config.sliding_windows[index],
            **arguments.of("attn"),
        )
        self.q_norm: RMSNorm | None = None
        self.k_norm: RMSNorm | None = None
        if config.qk_norm:
            self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps, **arguments.of("q_norm"))
            self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps, **arguments.of("k_norm"))

    def forward(
        self,
        x: torch.Tensor | QuantizedTensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        cache: KVCache | None = None,
    ) -> torch.Tensor:
        """x [B, T, hidden], rotation [T, 1, head_dim] twice → [B, T, hidden]; keys and values go into the cache."""
        q, k, v = (part.unflatten(-1, (-1, self.head_dim)) for part in self.qkv_proj(x).split(self.rows, dim=-1))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        mixed: torch.Tensor = self.o_proj(self.attn(rotate(q, *rotation), rotate(k, *rotation), v, cache))
        return mixed


class DecoderLayer(nn.Module):
    """x + attention(norm(x)), then y + feed_forward(norm(y)). Subclasses bring the feed forward part."""

    def __init__(self, config: DecoderConfig, index: int, arguments: LayerArguments) -> None:
        super().__init__()
        self.self_attn = SelfAttention(config, index, arguments.under("self_attn"))
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, **arguments.of("input_layernorm"))
        self.post_attention_layernorm = RMSNorm(
            config.hidden_size, config.rms_norm_eps, **arguments.of("post_attention_layernorm")
        )

    def forward(
        self, x: torch.Tensor, rotation: tuple[torch.Tensor, torch.Tensor], cache: KVCache | None = None
    ) -> torch.Tensor:
        """x [B, T, hidden] → [B, T, hidden]."""
        attention = self.self_attn(self.input_layernorm(x), rotation, cache)
        # The norm adds what it is to normalize: on a GPU that is one pass over both.
        normalized, x = self.post_attention_layernorm(attention, x)
        return x + self.feed_forward(normalized)

    def feed_forward(self, x: torch.Tensor | QuantizedTensor) -> torch.Tensor:
        """x [B, T, hidden], normalized, or as codes if the plan says so → [B, T, hidden]."""
        raise NotImplementedError(f"{type(self).__name__} brings no feed forward part")


class Decoder(nn.Module):
    """Embedding, layers and last norm."""

    def __init__(self, config: DecoderConfig, layer: type[DecoderLayer], arguments: LayerArguments) -> None:
        super().__init__()
        self.embed_tokens = VocabParallelEmbedding(
            config.vocab_size, config.hidden_size, **arguments.of("embed_tokens")
        )
        self.layers = nn.ModuleList(
            layer(config, index, arguments.under(f"layers.{index}")) for index in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, **arguments.of("norm"))
        self.rotary_emb = RotaryEmbedding(config, arguments.device)

    def forward(
        self, input_ids: torch.Tensor, caches: Sequence[KVCache] | None = None, *, last_only: bool = False
    ) -> torch.Tensor | QuantizedTensor:
        """input_ids [B, T] → hidden states [B, T, hidden], or those of the last position [B, 1, hidden]."""
        if input_ids.dim() != 2:
            raise PolicyQuantError(f"input_ids must be [batch, positions], found shape {list(input_ids.shape)}")
        if caches is not None and len(caches) != len(self.layers):
            raise PolicyQuantError(f"expected {len(self.layers)} KV caches, one for each layer; found {len(caches)}")
        x = self.embed_tokens(input_ids)
        first = caches[0].length if caches is not None else 0
        positions = torch.arange(first, first + input_ids.shape[1], device=input_ids.device)
        rotation = self.rotary_emb(positions, x.dtype)
        for index, layer in enumerate(self.layers):
            x = layer(x, rotation, None if caches is None else caches[index])
        normalized: torch.Tensor | QuantizedTensor = self.norm(x[:, -1:] if last_only else x)
        return normalized


class DecoderForCausalLM(nn.Module):
    """A decoder and its head: token ids in, logits of the next token out.

    Args:
        config: the parsed `config.json` of the checkpoint.
        quant_config: where the layers get their methods from; None: they stay unquantized (`build` and `quantize_`
            give them their methods later).
        prefix: the model's own name, if it is part of a larger one.
        device: where tensors are made.
        dtype: the logical dtype; unless given, the one that `config` names, and else torch's default.

    Raises:
        PolicyQuantError: the config lacks a size, or asks for a variant that is not implemented.
    """

    layer: ClassVar[type[DecoderLayer]]

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        quant_config: QuantConfig | None = None,
        prefix: str = "",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.config: dict[str, Any] = dict(config)
        sizes = read_config(config)
        arguments = LayerArguments(quant_config, prefix, device, sizes.dtype if dtype is None else dtype)
        self.model = Decoder(sizes, self.layer, arguments.under("model"))
        head = arguments.of("lm_head")
        if sizes.tie_word_embeddings:
            # Its own weight is dropped at once, and shall not take memory before.
            head["device"] = "meta"
        self.lm_head = ParallelLMHead(sizes.vocab_size, sizes.hidden_size, **head)
        if sizes.tie_word_embeddings:
            self.lm_head.tie_to(self.model.embed_tokens)

    def forward(
        self, input_ids: torch.Tensor, caches: Sequence[KVCache] | None = None, *, last_only: bool = False
    ) -> torch.Tensor:
        """input_ids [B, T] → logits [B, T, vocabulary], or with `last_only` those of the last position, [B, 1, …].

        With caches (one for each layer, see `new_caches`) the ids follow the positions that the caches hold, and are
        added to them.

        Raises:
            PolicyQuantError: the ids are not [batch, positions], or the caches are not this model's or too short.
        """
        logits: torch.Tensor = self.lm_head(self.model(input_ids, caches, last_only=last_only))
        return logits

    def new_caches(self, batch: int, max_length: int) -> list[KVCache]:
        """Empty KV caches for `batch` sequences of up to `max_length` positions, one for each layer."""
        device, dtype = self.model.norm.weight.device, self.model.embed_tokens.params_dtype
        layers = cast("Iterable[DecoderLayer]", self.model.layers)
        return [layer.self_attn.attn.new_cache(batch, max_length, device, dtype) for layer in layers]
