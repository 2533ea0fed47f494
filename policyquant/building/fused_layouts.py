"""In which order a tensor that holds several parts has their rows.

Most models store parts one after another: all rows of q, then of k, then of v; gate, then up; such a tensor is taken
apart by its rows. Some interleave them, so that a part has no rows of its own in one place. Names alone do not tell, so
a spelling that means different things in different models is trusted only in those that are known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_STACKED: Final[Mapping[str, frozenset[str] | None]] = {
    "qkv_proj": None,
    "gate_up_proj": None,
    "w13": None,
    "w13_weight": None,
    "c_attn": frozenset({"gpt2"}),
    "qkv": frozenset({"qwen2_vl", "qwen2_5_vl"}),
    "Wqkv": frozenset({"mpt", "dbrx", "modernbert"}),
    "W_pack": frozenset({"baichuan"}),
}
"""Last part of a name → the model types in which it holds its parts one after another; None: all but those below."""

_BY_HEAD: Final = "it holds q, k and v of one head after another"
_INTERLEAVED: Final[Mapping[tuple[str, str], str]] = {
    ("gpt_oss", "gate_up_proj"): "its rows are gate's and up's in turn",
    ("codegen", "qkv_proj"): "it is divided into four shares first, each with q, v and k of its own",
    ("gpt_neox", "query_key_value"): _BY_HEAD,
    ("bloom", "query_key_value"): _BY_HEAD,
    ("falcon", "query_key_value"): "it holds the queries of one group after another, each with its key and value",
    ("internlm2", "wqkv"): "it holds the queries of one group after another, each with its key and value",
    ("gpt_bigcode", "c_attn"): "it holds q, k and v of one head after another unless all heads share one key",
}
"""(model type, last part of a name) → how its rows lie."""


_OFTEN_INTERLEAVED: Final = frozenset({name for _, name in _INTERLEAVED} - _STACKED.keys())


def why_not_divided(spelling: str, model_type: str, *, named_alike: bool = False) -> str | None:
    """Why a tensor cannot be taken apart by its rows; None if it can.

    Args:
        spelling: Last part of its layer's name, or of the name of a tensor that holds experts.
        model_type: Of the configuration, or the name of the family that names told; empty if unknown.
        named_alike: Whether the model has a merged layer of this very name, whose author says what it holds.
    """
    interleaved = _INTERLEAVED.get((model_type, spelling))
    if interleaved is not None:
        return interleaved
    models = _STACKED.get(spelling, frozenset())
    if models is None or model_type in models or (named_alike and spelling not in _OFTEN_INTERLEAVED):
        return None
    if spelling == "query_key_value":
        return "most models that call it so interleave the heads of q, k and v"
    kind = f"for models of type {model_type!r}" if model_type else "for this model, which names no type"
    return f"the order of the rows of {spelling!r} is not known {kind}"
