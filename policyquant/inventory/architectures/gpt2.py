"""GPT-2: weights of its `Conv1D` layers are stored [in, out]; the published files have no `transformer.` in front."""

from __future__ import annotations

from policyquant.inventory.architectures.family import Family, Tie, under

_BLOCK = {
    "ln_1": "input_norm",
    # Owns the causal mask, a buffer that old files store as `bias`.
    "attn": "attention",
    "attn.c_attn": "attention.qkv_proj",
    "attn.c_proj": "attention.o_proj",
    "ln_2": "post_attention_norm",
    "mlp.c_fc": "mlp.up_proj",
    "mlp.act": "mlp.act",
    "mlp.c_proj": "mlp.down_proj",
}
_AROUND = {
    "wte": "embedding",
    "wpe": "position_embedding",
    "ln_f": "final_norm",
}
_CONV1D = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")

FAMILY = Family(
    name="gpt2",
    layers={
        **_AROUND,
        **under("h.#", "decoder.#", _BLOCK),
        "lm_head": "head",
        "score": "head",
        "classifier": "head",
        **{f"transformer.{name}": role for name, role in _AROUND.items()},
        **under("transformer.h.#", "decoder.#", _BLOCK),
    },
    modules=tuple((name, f"transformer.{name}") for name in ("wte", "wpe", "ln_f", "h")),
    transposed=frozenset(f"{prefix}h.#.{name}.weight" for prefix in ("", "transformer.") for name in _CONV1D),
    equal_parts=frozenset({"decoder"}),
    ties=(
        Tie("lm_head", "wte", default=True, requires="wte"),
        Tie("lm_head", "transformer.wte", default=True, requires="transformer.wte"),
    ),
)
