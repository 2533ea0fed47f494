"""Attention over queries, keys and values that are already projected and rotated, and the cache of keys and values.

The cache is the layer's only quantized tensor: with `kv_cache: fp8` it holds codes of one byte and nothing else.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 (its customary name)

from policyquant.errors import PolicyQuantError
from policyquant.kernels import ops
from policyquant.layers.base import QuantConfig
from policyquant.layers.gradients import gradient_asked
from policyquant.layers.output import EmittingLayer, operators_pay
from policyquant.methods.dtypes import FP8
from policyquant.policy.scheme import Quantization, Scheme
from policyquant.quantized_tensor import QuantizedTensor


class KVCache:
    """Keys and values of the positions seen so far, for one attention layer.

    `k` and `v` are allocated once, [batch, max_length, key-value heads, head_dim], in `dtype` or, where `quantization`
    says so, as FP8 codes with one scale [1] for the whole cache: codes = clamp(x / scale), x ≈ codes * scale.
    `length` positions are filled.
    """

    def __init__(
        self,
        shape: tuple[int, int, int, int],
        quantization: Quantization | None = None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.dtype = torch.get_default_dtype() if dtype is None else dtype
        self.length = 0
        self.scale: torch.Tensor | None = None
        stored = self.dtype
        if quantization is not None:
            check_kv_cache(quantization)
            stored = FP8[quantization.dtype]
            scale = 1.0 if quantization.scale is None else quantization.scale
            self.scale = torch.full((1,), scale, dtype=torch.float32, device=device)
        # Zeros, so that positions not yet filled hold nothing that could spread if they were read.
        self.k = torch.zeros(shape, dtype=stored, device=device)
        self.v = torch.zeros(shape, dtype=stored, device=device)
        self._next_slots = torch.arange(shape[0], device=device) if self.scale is not None and self.k.is_cuda else None

    @property
    def max_length(self) -> int:
        """How many positions fit."""
        return self.k.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of keys, values and scale."""
        return self.k.nbytes + self.v.nbytes + (0 if self.scale is None else self.scale.nbytes)

    def append(self, k: torch.Tensor, v: torch.Tensor) -> None:
        """Put `k` and `v`, [batch, positions, key-value heads, head_dim], behind what is there.

        Raises:
            PolicyQuantError: the shapes are not the cache's, or the positions do not fit.
        """
        batch, _, heads, head_dim = self.k.shape
        expected = (batch, k.shape[1], heads, head_dim)
        if k.shape != expected or v.shape != expected:
            raise PolicyQuantError(
                f"a KV cache of shape {list(self.k.shape)} takes keys and values [{batch}, positions, {heads},"
                f" {head_dim}]; found {list(k.shape)} and {list(v.shape)}"
            )
        end = self.length + k.shape[1]
        if end > self.max_length:
            raise PolicyQuantError(
                f"the KV cache holds {self.max_length} positions, of which {self.length} are filled;"
                f" {k.shape[1]} more do not fit: make it with a larger max_length"
            )
        to_k, to_v = self.k.narrow(1, self.length, k.shape[1]), self.v.narrow(1, self.length, k.shape[1])
        if self.scale is not None and operators_pay(self.k) and not gradient_asked(k, v):
            # The operator is for paged caches. Here a sequence is a block, of the positions to be written alone.
            slots = self._slots(k.shape[1])
            ops.reshape_and_cache_fp8(k.flatten(0, 1), v.flatten(0, 1), to_k, to_v, slots, self.scale, self.scale)
        else:
            # On a CPU this takes a third of the time.
            to_k.copy_(k if self.scale is None else ops.static_scaled_fp8_quant(k, self.scale, to_k.dtype))
            to_v.copy_(v if self.scale is None else ops.static_scaled_fp8_quant(v, self.scale, to_v.dtype))
        self.length = end

    def read(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the filled positions, [batch, length, key-value heads, head_dim], in `dtype`."""
        return self._decode(self.k), self._decode(self.v)

    def reset(self) -> None:
        """Forget all positions; the memory is kept."""
        self.length = 0

    def _slots(self, positions: int) -> torch.Tensor:
        """All slots of blocks of so many positions, in order; those of one position, for which steps ask, are kept."""
        if self._next_slots is not None and positions == 1:
            return self._next_slots
        return torch.arange(self.k.shape[0] * positions, device=self.k.device)

    def _decode(self, stored: torch.Tensor) -> torch.Tensor:
        filled = stored.narrow(1, 0, self.length)
        # Not by `gather_cache_fp8`: what is filled lies in order, and a list of slots would be read for nothing.
        return filled if self.scale is None else ops.dequantize(filled, self.scale, self.dtype)


def check_kv_cache(quantization: Quantization, layer_name: str = "") -> None:
    """Refuse a cache that cannot be stored.

    Raises:
        PolicyQuantError: the dtype is not an 8-bit float, or the scale is not one static scale for the cache.
    """
    where = f"{layer_name}: " if layer_name else ""
    if quantization.dtype not in FP8:
        raise PolicyQuantError(
            f"{where}a KV cache cannot be stored as {quantization.dtype}; expected one of {', '.join(FP8)}"
        )
    if quantization.granularity != "tensor":
        raise PolicyQuantError(
            f"{where}a KV cache takes granularity tensor (one scale for all heads), found {quantization.granularity}"
        )
    if quantization.scheme == "dynamic":
        raise PolicyQuantError(f"{where}a KV cache takes a static scale, found dynamic")


class Attention(EmittingLayer):
    """Scaled dot-product attention with grouped key-value heads, on `F.scaled_dot_product_attention`.

    softmax(scale * q kᵀ + mask) v, with `scale` 1 / sqrt(head_dim) unless it is given (Vaswani 2017,
    arXiv:1706.03762). Query head h reads key-value head h // (num_heads / num_kv_heads). A causal position sees itself
    and those before it; under a sliding window only the last `sliding_window` of these.

    Raises:
        PolicyQuantError: `num_heads` is no multiple of `num_kv_heads`, or a window is asked for without `causal`.
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        num_kv_heads: int | None = None,
        scale: float | None = None,
        sliding_window: int | None = None,
        causal: bool = True,
        *,
        quant_config: QuantConfig | None = None,
        prefix: str = "",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(quant_config, prefix)
        self.num_heads = num_heads
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if num_heads % self.num_kv_heads:
            raise PolicyQuantError(
                f"Attention: {num_heads} heads cannot share {self.num_kv_heads} key-value heads evenly"
            )
        if sliding_window is not None and not causal:
            raise PolicyQuantError("Attention: sliding_window needs causal=True")
        self.head_dim = head_dim
        self.scale = head_dim**-0.5 if scale is None else scale
        self.sliding_window = sliding_window
        self.causal = causal

    def take_scheme(self, scheme: Scheme) -> None:
        """Take what the plan decided.

        Raises:
            PolicyQuantError: the output cannot be produced, or the KV cache cannot be stored.
        """
        if scheme.kv_cache is not None:
            check_kv_cache(scheme.kv_cache, self.layer_name)
        super().take_scheme(scheme)

    def new_cache(
        self,
        batch: int,
        max_length: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> KVCache:
        """An empty cache, stored as the plan says; `dtype` is what keys and values have outside of it."""
        shape = (batch, max_length, self.num_kv_heads, self.head_dim)
        return KVCache(shape, self.scheme.kv_cache, device=device, dtype=dtype)

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cache: KVCache | None = None
    ) -> torch.Tensor | QuantizedTensor:
        """q [B, T, Hq, D], k and v [B, T, Hkv, D] → [B, T, Hq * D].

        With a cache, k and v are appended to it, and the queries see all that it holds; they are its last T positions.
        """
        if cache is not None:
            cache.append(k, v)
            k, v = (each.to(q.dtype) for each in cache.read())
        mixed = self._attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return self.emit(mixed.transpose(1, 2).flatten(2))

    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q [B, Hq, T, D], k and v [B, Hkv, S, D] → [B, Hq, T, D]."""
        batch, heads, queries, _ = q.shape
        groups = heads // self.num_kv_heads
        mask = self._mask(queries, k.shape[2], q.device)
        # A mask and `enable_gqa` together leave the fast kernels; these are the ways around it that transformers takes.
        if groups > 1 and mask is not None:
            if queries == 1:
                packed = q.reshape(batch, self.num_kv_heads, groups, self.head_dim)
                mixed = F.scaled_dot_product_attention(packed, k, v, attn_mask=mask, scale=self.scale)
                return mixed.reshape(batch, heads, 1, self.head_dim)
            k = k.repeat_interleave(groups, dim=1)
            v = v.repeat_interleave(groups, dim=1)
        # Not `and queries > 1`: where the length is a symbol, that is no bool, which torch asks for.
        causal = False if queries == 1 else self.causal and mask is None
        return F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            is_causal=causal,
            scale=self.scale,
            enable_gqa=groups > 1 and mask is None,
        )

    def _mask(self, queries: int, keys: int, device: torch.device) -> torch.Tensor | None:
        """Which keys each query sees, [queries, keys]; None where `is_causal`, or no mask at all, says the same."""
        windowed = self.sliding_window is not None and keys > self.sliding_window
        if not self.causal or (not windowed and queries in (1, keys)):
            return None
        # The queries are the last positions of the keys.
        at = torch.arange(keys - queries, keys, device=device)[:, None]
        seen = torch.arange(keys, device=device)[None, :]
        mask = seen <= at
        if windowed:
            assert self.sliding_window is not None
            mask &= seen > at - self.sliding_window
        return mask

    def extra_repr(self) -> str:
        text = f"heads={self.num_heads}, kv_heads={self.num_kv_heads}, head_dim={self.head_dim}"
        if self.sliding_window is not None:
            text += f", sliding_window={self.sliding_window}"
        if not self.causal:
            text += ", causal=False"
        return ", ".join(part for part in (text, super().extra_repr()) if part)
