"""What the models need of a checkpoint's `config.json`, read as transformers reads it, with its defaults."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from policyquant.errors import PolicyQuantError
from policyquant.methods.dtypes import PLAIN

_QWEN: Final = frozenset({"qwen2", "qwen3", "qwen3_moe"})
_QK_NORM: Final = frozenset({"qwen3", "qwen3_moe"})
_WINDOWED: Final = frozenset({"mistral", "mixtral"})
_LARGEST_SIZE: Final = 2**31 - 1
"""The largest size whose product with another one torch can count."""
_MOST_LAYERS: Final = 10_000
_MOST_EXPERTS: Final = 300_000
"""Of all layers together. Each layer and each expert is an object, whose number a file can claim without having them;
the largest models have about 100 layers, and 25,000 experts."""
_KV_HEADS: Final = {"mistral": 8, "mixtral": 8, "qwen2": 32, "qwen3": 32, "qwen3_moe": 4}


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """The experts of a sparse decoder."""

    num_experts: int
    top_k: int
    """How many experts each token is given to."""
    intermediate_size: int
    renormalize: bool
    """Whether the weights of a token's experts add up to 1."""
    layers: frozenset[int]
    """The layers that have experts; the others have one MLP of the decoder's `intermediate_size`."""


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    """Sizes and variants of a decoder; field names are those of `config.json` where it has them."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    rope_parameters: Mapping[str, Any]
    """`rope_type`, `rope_theta`, and what the type takes besides."""
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    sliding_windows: tuple[int | None, ...]
    """For each layer, how many positions its queries see; None: all before them."""
    experts: ExpertsConfig | None
    """None: all layers are dense."""
    dtype: torch.dtype | None
    """What the checkpoint is stored in, if the file says so."""


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    """The parsed `config.json` of a Llama, Mistral, Qwen2, Qwen3, Mixtral or Qwen3-MoE.

    Raises:
        PolicyQuantError: a size is missing, a value is not what its key takes, or the model has a variant that is not
            implemented.
    """
    family = str(config.get("model_type"))
    if required(config, "num_hidden_layers") > _MOST_LAYERS:
        raise unlike("num_hidden_layers", f"at most {_MOST_LAYERS:,}", config["num_hidden_layers"])
    experts = _experts(config, family)
    if experts is not None and len(experts.layers) * experts.num_experts > _MOST_EXPERTS:
        found = f"{len(experts.layers):,} layers of {experts.num_experts:,} experts"
        raise PolicyQuantError(f"config.json: found {found}; expected at most {_MOST_EXPERTS:,} experts in all")
    heads = required(config, "num_attention_heads")
    hidden = required(config, "hidden_size")
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise PolicyQuantError(f"config.json: hidden_act {activation!r} is not implemented; expected 'silu'")
    attention_bias = family not in _WINDOWED and bool(config.get("attention_bias", False))
    positions = {"llama": 2048, "mistral": 131072, "mixtral": 131072}.get(family, 32768)
    maximum = _given(config, "max_position_embeddings", positions)
    head_dim = _given(config, "head_dim", 128 if family == "qwen3" and "head_dim" not in config else hidden // heads)
    if head_dim < 2 or head_dim % 2:
        raise PolicyQuantError(f"config.json: heads are to have an even number of elements; found {head_dim}")
    epsilon = 1e-5 if family == "mixtral" else 1e-6
    return DecoderConfig(
        model_type=family,
        vocab_size=required(config, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=required(config, "intermediate_size"),
        num_hidden_layers=required(config, "num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=_key_value_heads(config, family, heads),
        head_dim=head_dim,
        rms_norm_eps=number(config, "rms_norm_eps") if "rms_norm_eps" in config else epsilon,
        max_position_embeddings=maximum,
        rope_parameters=_rope_parameters(config, maximum, 1e6 if family == "mixtral" else 1e4),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=family == "qwen2" or attention_bias,
        output_bias=family != "qwen2" and attention_bias,
        mlp_bias=family == "llama" and bool(config.get("mlp_bias", False)),
        qk_norm=family in _QK_NORM,
        sliding_windows=_sliding_windows(config, family),
        experts=experts,
        dtype=_dtype(config),
    )


def required(config: Mapping[str, Any], key: str) -> int:
    """A size that no model can do without.

    Raises:
        PolicyQuantError: it is missing, no positive whole number, or too large to count with.
    """
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _LARGEST_SIZE:
        raise unlike(key, "a positive whole number", value)
    return value


def number(values: Mapping[str, Any], key: str) -> float:
    """A positive number that is not a size, as it is written.

    Raises:
        PolicyQuantError: it is missing, or something else.
    """
    value = values.get(key)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value <= sys.float_info.max:
        raise unlike(key, "a positive number", value)
    return value


def unlike(key: str, expected: str, value: object) -> PolicyQuantError:
    """The error that a key's value is not what is expected."""
    found = "it is missing" if value is None else f"found {value!r:.80}"
    return PolicyQuantError(f"config.json: {key} is to be {expected}; {found}")


def _given(config: Mapping[str, Any], key: str, default: int) -> int:
    return default if config.get(key) is None else required(config, key)


def _key_value_heads(config: Mapping[str, Any], family: str, heads: int) -> int:
    """As many as there are heads if the file says null; if it says nothing, the family's own default."""
    default = heads if "num_key_value_heads" in config else _KV_HEADS.get(family, heads)
    return _given(config, "num_key_value_heads", default)


def _experts(config: Mapping[str, Any], family: str) -> ExpertsConfig | None:
    layers = range(required(config, "num_hidden_layers"))
    if family == "mixtral":
        return ExpertsConfig(
            num_experts=_given(config, "num_local_experts", 8),
            top_k=_given(config, "num_experts_per_tok", 2),
            intermediate_size=required(config, "intermediate_size"),
            renormalize=True,
            layers=frozenset(layers),
        )
    if family != "qwen3_moe":
        return None
    dense, step = config.get("mlp_only_layers") or [], _given(config, "decoder_sparse_step", 1)
    if not isinstance(dense, (list, tuple)):
        raise unlike("mlp_only_layers", "a list of layers", dense)
    # Version 5 of transformers takes both names.
    name = "num_local_experts" if "num_local_experts" in config else "num_experts"
    return ExpertsConfig(
        num_experts=_given(config, name, 128),
        top_k=_given(config, "num_experts_per_tok", 8),
        intermediate_size=_given(config, "moe_intermediate_size", 768),
        renormalize=bool(config.get("norm_topk_prob", False)),
        layers=frozenset(layer for layer in layers if layer not in dense and (layer + 1) % step == 0),
    )


def _rope_parameters(config: Mapping[str, Any], maximum: int, theta: float) -> Mapping[str, Any]:
    """Version 5 writes `rope_parameters`; before, there were `rope_theta` and `rope_scaling` with `type`."""
    key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    given = config.get(key) or {}
    if not isinstance(given, Mapping):
        raise unlike(key, "an object", given)
    parameters = dict(given)
    if any(isinstance(value, Mapping) for value in parameters.values()):
        raise PolicyQuantError("config.json: rotary parameters that differ from layer to layer are not implemented")
    older_name = parameters.pop("type", "default")
    parameters.setdefault("rope_type", older_name)
    parameters.setdefault("rope_theta", config.get("rope_theta", theta))
    partial = parameters.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if partial not in (None, 1.0):
        raise PolicyQuantError(f"config.json: partial_rotary_factor {partial} is not implemented; expected 1.0")
    trained = config.get("original_max_position_embeddings")
    if trained is not None:
        parameters["original_max_position_embeddings"] = trained
    parameters.setdefault("original_max_position_embeddings", maximum)
    return parameters


def _sliding_windows(config: Mapping[str, Any], family: str) -> tuple[int | None, ...]:
    layers = required(config, "num_hidden_layers")
    if family in _WINDOWED:
        return (_window(config, 4096 if family == "mistral" else None),) * layers
    if family not in _QWEN or not config.get("use_sliding_window", False):
        return (None,) * layers
    window = _window(config, 4096)
    if family == "qwen3_moe":
        return (window,) * layers
    types = config.get("layer_types")
    if types is None:
        first = config.get("max_window_layers", 28)
        if not isinstance(first, int):
            raise unlike("max_window_layers", "a whole number", first)
        types = ["sliding_attention" if layer >= first else "full_attention" for layer in range(layers)]
    known = isinstance(types, (list, tuple)) and all(kind in ("full_attention", "sliding_attention") for kind in types)
    if not known or len(types) != layers:
        raise unlike("layer_types", f"full_attention or sliding_attention for each of {layers} layers", types)
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def _window(config: Mapping[str, Any], default: int | None) -> int | None:
    """How many positions a windowed layer sees; null: all."""
    return None if config.get("sliding_window", default) is None else _given(config, "sliding_window", default or 0)


def _dtype(config: Mapping[str, Any]) -> torch.dtype | None:
    name = config.get("dtype") or config.get("torch_dtype")
    if name is None or isinstance(name, torch.dtype):
        return name
    dtype = PLAIN.get(str(name).removeprefix("torch."))
    if dtype is None:
        raise PolicyQuantError(f"config.json: dtype {name!r} is not one of {', '.join(PLAIN)}")
    return dtype
