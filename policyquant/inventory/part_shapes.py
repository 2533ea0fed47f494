"""Shapes of the parts of a layer that is stored fused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from policyquant.inventory.config_file import TEXT_KEYS

Shape = tuple[int, ...]

_HEADS: Final = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_KV_HEADS: Final = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
_WIDTH: Final = ("hidden_size", "n_embd", "d_model", "embed_dim")
_EXPERTS: Final = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "num_routed_experts")
_MOST: Final = 1 << 63
"""No number of a model reaches it; products of what is below it can still be printed."""
_OTHERS: Final = {"vision": ("vision_config",), "audio": ("audio_config",)}


def tower_config(config: Mapping[str, object], tower: str) -> Mapping[str, object]:
    """The part of a configuration that describes one tower; the whole of it if it is not divided."""
    for key in _OTHERS.get(tower, TEXT_KEYS):
        nested = config.get(key)
        if isinstance(nested, Mapping):
            return nested
    return config


def expert_count(config: Mapping[str, object]) -> int | None:
    """How many routed experts a block of the decoder has."""
    return _number(tower_config(config, "decoder"), _EXPERTS)


def width(config: Mapping[str, object], tower: str) -> int | None:
    """Size of the residual stream."""
    return _number(tower_config(config, tower), _WIDTH)


def qkv_shapes(
    shape: Shape | None, config: Mapping[str, object], tower: str, *, equal: bool
) -> tuple[Shape | None, Shape | None, Shape | None]:
    """Shapes of q, k and v, each [heads · head size, in], stored together as `shape` [out, in].

    The configuration's numbers of heads decide, `equal` thirds of a square attention are the answer where it gives
    none. All are None if neither adds up to what is stored.
    """
    if shape is None or len(shape) != 2:
        return None, None, None
    out, inner = shape
    numbers = tower_config(config, tower)
    heads = _number(numbers, _HEADS)
    query = key = 0
    if heads:
        kv_heads = _number(numbers, _KV_HEADS) or (1 if numbers.get("multi_query") is True else heads)
        size = _number(numbers, ("head_dim",)) or (_number(numbers, _WIDTH) or inner) // heads
        query, key = heads * size, kv_heads * size
    if query + 2 * key != out:
        if not equal or out != 3 * inner:
            return None, None, None
        query = key = out // 3
    return (query, inner), (key, inner), (key, inner)


def halves(shape: Shape | None) -> tuple[Shape | None, Shape | None]:
    """Shapes of gate and up stored together as `shape` [..., out, in]."""
    if shape is None or len(shape) < 2 or shape[-2] % 2:
        return None, None
    half = (*shape[:-2], shape[-2] // 2, shape[-1])
    return half, half


def _number(numbers: Mapping[str, object], keys: tuple[str, ...]) -> int | None:
    for key in keys:
        value = numbers.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MOST:
            return value
    return None
