"""Small models with the names of real families, and the real ones of `tests/data/models`."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from policyquant import Inventory, Plan, load_policy, resolve

MODELS = Path("tests/data/models")

Tensor = tuple[str, tuple[int, ...] | None, str | None]


@cache
def inventory(model: str) -> Inventory:
    """A real model, by checkpoint names."""
    return Inventory.open(MODELS / f"{model}.json.gz")


@cache
def _case(model: str) -> Mapping[str, Any]:
    data: Mapping[str, Any] = json.loads(gzip.decompress((MODELS / f"{model}.json.gz").read_bytes()))
    return data


@cache
def module_inventory(model: str, naming: Literal["checkpoint", "module"] | None = "module") -> Inventory:
    """The same model as transformers v5 builds it, by the names of its modules."""
    case = _case(model)
    return Inventory.from_tensors(
        ((name, shape, "BF16") for name, shape in case["v5_state_shapes"].items()),
        name=model,
        config=case["config"],
        naming=naming,
    )


def plan(model: Inventory, layers: object = None, /, **keys: object) -> Plan:
    """`model` under a policy given by its `layers` (a mapping or a list of rules) and its other keys."""
    written = dict(keys) if layers is None else {"layers": layers, **keys}
    return resolve(load_policy(written), model)


def methods(resolved: Plan) -> dict[str, str]:
    """Method of each layer that a weight method could take, or that was decided anyhow, by checkpoint name."""
    return {layer.name: layer.method for layer in resolved.layers()}


def quantized(resolved: Plan) -> set[str]:
    """Names of the layers that are not left as stored."""
    return {layer.name for layer in resolved.layers() if layer.method != "none"}


def findings(resolved: Plan, code: str) -> list[str]:
    """Messages of the findings with one code."""
    return [finding.message for finding in resolved.findings if finding.code == code]


def codes(resolved: Plan, *levels: str) -> list[str]:
    """Codes of all findings of the given levels (all, if none is given), sorted."""
    return sorted(finding.code for finding in resolved.findings if not levels or finding.level in levels)


# --- small models ----------------------------------------------------------------------------------------------------

HIDDEN, INNER, VOCABULARY = 256, 512, 1024
HEADS = 4


def _attention(prefix: str, *, v: bool = True) -> Iterable[Tensor]:
    for name in ("q_proj", "k_proj", *(("v_proj",) if v else ()), "o_proj"):
        yield f"{prefix}.self_attn.{name}.weight", (HIDDEN, HIDDEN), "BF16"


def _norms(prefix: str) -> Iterable[Tensor]:
    for name in ("input_layernorm", "post_attention_layernorm"):
        yield f"{prefix}.{name}.weight", (HIDDEN,), "BF16"


def _mlp(prefix: str, inner: int = INNER) -> Iterable[Tensor]:
    yield f"{prefix}.gate_proj.weight", (inner, HIDDEN), "BF16"
    yield f"{prefix}.up_proj.weight", (inner, HIDDEN), "BF16"
    yield f"{prefix}.down_proj.weight", (HIDDEN, inner), "BF16"


def _around(*, head: bool = True) -> Iterable[Tensor]:
    yield "model.embed_tokens.weight", (VOCABULARY, HIDDEN), "BF16"
    yield "model.norm.weight", (HIDDEN,), "BF16"
    if head:
        yield "lm_head.weight", (VOCABULARY, HIDDEN), "BF16"


def _config(model_type: str, architecture: str, blocks: int, **more: object) -> dict[str, object]:
    return {
        "model_type": model_type,
        "architectures": [architecture],
        "num_hidden_layers": blocks,
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "tie_word_embeddings": False,
        **more,
    }


def _llama_tensors(blocks: int, inner: int, head: bool, without_v: Iterable[int] = ()) -> Iterable[Tensor]:
    yield from _around(head=head)
    for i in range(blocks):
        prefix = f"model.layers.{i}"
        yield from _norms(prefix)
        yield from _attention(prefix, v=i not in set(without_v))
        yield from _mlp(f"{prefix}.mlp", inner)


@cache
def llama(blocks: int = 2, inner: int = INNER, without_v: tuple[int, ...] = ()) -> Inventory:
    """A dense decoder; `without_v` are blocks that have no v_proj."""
    return Inventory.from_tensors(
        _llama_tensors(blocks, inner, True, without_v),
        name="llama",
        config=_config("llama", "LlamaForCausalLM", blocks),
    )


@cache
def tied_llama(blocks: int = 1) -> Inventory:
    """A dense decoder whose head shares the embedding's weight and is not stored."""
    return Inventory.from_tensors(
        _llama_tensors(blocks, INNER, False),
        name="tied-llama",
        config=_config("llama", "LlamaForCausalLM", blocks, tie_word_embeddings=True),
    )


@cache
def llama_without_shapes() -> Inventory:
    """What an index alone tells of a dense decoder."""
    return Inventory.from_tensors(
        [(name, None, None) for name, _, _ in _llama_tensors(2, INNER, True)],
        name="llama-index",
        config=_config("llama", "LlamaForCausalLM", 2),
    )


@cache
def mixtral(blocks: int = 2, experts: int = 4) -> Inventory:
    """Routed experts, each stored by itself."""

    def tensors() -> Iterable[Tensor]:
        yield from _around()
        for i in range(blocks):
            prefix = f"model.layers.{i}"
            yield from _norms(prefix)
            yield from _attention(prefix)
            yield f"{prefix}.block_sparse_moe.gate.weight", (experts, HIDDEN), "BF16"
            for e in range(experts):
                expert = f"{prefix}.block_sparse_moe.experts.{e}"
                yield f"{expert}.w1.weight", (INNER, HIDDEN), "BF16"
                yield f"{expert}.w2.weight", (HIDDEN, INNER), "BF16"
                yield f"{expert}.w3.weight", (INNER, HIDDEN), "BF16"

    return Inventory.from_tensors(
        tensors(),
        name="mixtral",
        config=_config("mixtral", "MixtralForCausalLM", blocks, num_local_experts=experts),
    )


@cache
def mixtral_modules(blocks: int = 2, experts: int = 4) -> Inventory:
    """The same, as transformers v5 holds it: experts are 3-D parameters of one module."""

    def tensors() -> Iterable[Tensor]:
        yield from _around()
        for i in range(blocks):
            prefix = f"model.layers.{i}"
            yield from _norms(prefix)
            yield from _attention(prefix)
            yield f"{prefix}.mlp.gate.weight", (experts, HIDDEN), "BF16"
            yield f"{prefix}.mlp.experts.gate_up_proj", (experts, 2 * INNER, HIDDEN), "BF16"
            yield f"{prefix}.mlp.experts.down_proj", (experts, HIDDEN, INNER), "BF16"

    return Inventory.from_tensors(
        tensors(),
        name="mixtral-v5",
        config=_config("mixtral", "MixtralForCausalLM", blocks, num_local_experts=experts),
        naming="module",
    )


@cache
def deepseek(stored: str = "BF16", experts: int = 4) -> Inventory:
    """Latent attention, one dense block, one with routed and shared experts, one prediction (MTP) layer.

    `stored` F8_E4M3 stores projections in FP8 with one scale for each 128x128 block.
    """

    def projection(name: str, shape: tuple[int, int]) -> Iterable[Tensor]:
        yield f"{name}.weight", shape, stored
        if stored == "F8_E4M3":
            yield f"{name}.weight_scale_inv", tuple(-(-size // 128) for size in shape), "F32"

    def mlp(prefix: str) -> Iterable[Tensor]:
        for name, shape, _ in _mlp(prefix):
            assert shape is not None
            yield from projection(name.removesuffix(".weight"), (shape[0], shape[1]))

    def tensors() -> Iterable[Tensor]:
        yield from _around()
        for i in range(3):
            prefix = f"model.layers.{i}"
            yield from _norms(prefix)
            for name in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"):
                yield from projection(f"{prefix}.self_attn.{name}", (HIDDEN, HIDDEN))
            for name in ("q_a_layernorm", "kv_a_layernorm"):
                yield f"{prefix}.self_attn.{name}.weight", (HIDDEN,), "BF16"
            if i == 0:
                yield from mlp(f"{prefix}.mlp")
                continue
            yield f"{prefix}.mlp.gate.weight", (experts, HIDDEN), "BF16"
            yield f"{prefix}.mlp.gate.e_score_correction_bias", (experts,), "F32"
            yield from mlp(f"{prefix}.mlp.shared_experts")
            for e in range(experts):
                yield from mlp(f"{prefix}.mlp.experts.{e}")
        yield "model.layers.2.embed_tokens.weight", (VOCABULARY, HIDDEN), "BF16"
        yield "model.layers.2.enorm.weight", (HIDDEN,), "BF16"
        yield "model.layers.2.hnorm.weight", (HIDDEN,), "BF16"
        yield "model.layers.2.eh_proj.weight", (HIDDEN, 2 * HIDDEN), "BF16"
        yield "model.layers.2.shared_head.norm.weight", (HIDDEN,), "BF16"
        yield "model.layers.2.shared_head.head.weight", (VOCABULARY, HIDDEN), "BF16"

    return Inventory.from_tensors(
        tensors(),
        name="deepseek",
        config=_config("deepseek_v3", "DeepseekV3ForCausalLM", 2, n_routed_experts=experts, num_nextn_predict_layers=1),
    )


@cache
def phi3() -> Inventory:
    """q/k/v and gate/up are each stored as one tensor."""

    def tensors() -> Iterable[Tensor]:
        yield from _around()
        for i in range(2):
            prefix = f"model.layers.{i}"
            yield from _norms(prefix)
            yield f"{prefix}.self_attn.qkv_proj.weight", (3 * HIDDEN, HIDDEN), "BF16"
            yield f"{prefix}.self_attn.o_proj.weight", (HIDDEN, HIDDEN), "BF16"
            yield f"{prefix}.mlp.gate_up_proj.weight", (2 * INNER, HIDDEN), "BF16"
            yield f"{prefix}.mlp.down_proj.weight", (HIDDEN, INNER), "BF16"

    return Inventory.from_tensors(tensors(), name="phi3", config=_config("phi3", "Phi3ForCausalLM", 2))


@cache
def qwen2_5_vl(vision_inner: int = INNER) -> Inventory:
    """A decoder and a vision tower whose q/k/v are stored as one tensor under another spelling (`attn.qkv`)."""

    def tensors() -> Iterable[Tensor]:
        yield from _llama_tensors(2, INNER, True)
        yield "visual.patch_embed.proj.weight", (HIDDEN, 3, 2, 14, 14), "BF16"
        for i in range(3):
            prefix = f"visual.blocks.{i}"
            yield f"{prefix}.norm1.weight", (HIDDEN,), "BF16"
            yield f"{prefix}.norm2.weight", (HIDDEN,), "BF16"
            yield f"{prefix}.attn.qkv.weight", (3 * HIDDEN, HIDDEN), "BF16"
            yield f"{prefix}.attn.proj.weight", (HIDDEN, HIDDEN), "BF16"
            yield from _mlp(f"{prefix}.mlp", vision_inner)
        yield "visual.merger.ln_q.weight", (HIDDEN,), "BF16"
        yield "visual.merger.mlp.0.weight", (HIDDEN, HIDDEN), "BF16"
        yield "visual.merger.mlp.2.weight", (HIDDEN, HIDDEN), "BF16"

    return Inventory.from_tensors(
        tensors(),
        name="qwen2.5-vl",
        config=_config("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", 2),
    )


@cache
def t5() -> Inventory:
    """Encoder and decoder with cross-attention; one embedding, shared three ways."""

    def tensors() -> Iterable[Tensor]:
        yield "shared.weight", (VOCABULARY, HIDDEN), "F32"
        for tower, attentions in (("encoder", ("SelfAttention",)), ("decoder", ("SelfAttention", "EncDecAttention"))):
            for i in range(2):
                block = f"{tower}.block.{i}.layer"
                for place, attention in enumerate(attentions):
                    yield f"{block}.{place}.layer_norm.weight", (HIDDEN,), "F32"
                    for name in "qkvo":
                        yield f"{block}.{place}.{attention}.{name}.weight", (HIDDEN, HIDDEN), "F32"
                place = len(attentions)
                yield f"{block}.{place}.layer_norm.weight", (HIDDEN,), "F32"
                yield f"{block}.{place}.DenseReluDense.wi.weight", (INNER, HIDDEN), "F32"
                yield f"{block}.{place}.DenseReluDense.wo.weight", (HIDDEN, INNER), "F32"
            yield f"{tower}.final_layer_norm.weight", (HIDDEN,), "F32"

    return Inventory.from_tensors(
        tensors(),
        name="t5",
        config=_config("t5", "T5ForConditionalGeneration", 2, num_layers=2, d_model=HIDDEN, tie_word_embeddings=True),
    )
