"""What layers are commonly called, for models of which no family's data speaks. All words but those of classes
are lower case."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from policyquant.inventory.kinds import Kind
from policyquant.inventory.layers import INDEX


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _each(**places: str) -> dict[str, str]:
    return {word: place for place, words in places.items() for word in words.split()}


VISION: Final = ("vision", "visual", "image", "img", "vit", "clip_vision", "siglip", "sam")
"""Beginnings of a part that tell a vision tower."""

AUDIO: Final = ("audio", "speech", "sound", "whisper")
"""Beginnings of a part that tell an audio tower."""

AUDIO_MODELS: Final = frozenset(
    {"whisper", "wav2vec2", "wav2vec2-bert", "hubert", "wavlm", "speech_to_text", "seamless"}
)
"""`model_type` of models whose encoder hears, though nothing in their names says so."""

PREDICTION: Final = ("mtp", "nextn")
"""Beginnings of a part that tell multi-token-prediction layers."""

ENCODER_MODELS: Final = (
    "bert",
    "electra",
    "mpnet",
    "xlm",
    "esm",
    "ernie_m",
    "funnel",
    "longformer",
    "big_bird",
    "nystromformer",
    "layoutlm",
)
"""What `model_type` of an encoder without a decoder holds."""

PROJECTOR: Final = (
    "projector",
    "merger",
    "connector",
    "aligner",
    "adapter",
    "resampler",
    "perceiver",
    "mlp1",
    "language_projection",
)
"""What a part that joins two towers holds."""

CROSS_ATTENTION: Final = _words(
    "cross_attn encoder_attn crossattention encdecattention cross_attention enc_dec_attention attn2"
)
ATTENTION: Final = _words("self_attn attn attention self_attention selfattention self attn1 mha multi_head_attention")
MIXER: Final = _words(
    "mixer mamba mamba2 linear_attn ssm temporal_block delta_net short_conv conv gla rwkv recurrent lightning_attn"
)
"""State-space and linear attention, short convolutions."""

ANY_MIXER: Final = frozenset({"mixer", "temporal_block"})
"""Words under which some hybrids put whatever a block has: state space, attention, or an MLP."""

LINEAR_ATTENTION: Final = _words(
    "a_log dt_bias conv1d q_conv1d k_conv1d v_conv1d r_proj receptance time_decay gk_proj g_norm g_norm_swish_gate"
)
"""What an attention module owns only if it is linear attention, which keeps a state instead of a KV cache."""

LIGHTNING_ATTENTION: Final = _words("qkv_proj output_gate norm")
"""What it owns, all of them, if it is MiniMax's linear attention."""

MLP: Final = _words("mlp feed_forward ffn ff feedforward densereludense moe block_sparse_moe mlp_block residual_mlp")
MOE: Final = _words("moe block_sparse_moe sparse_moe moe_block")
SHARED_EXPERTS: Final = ("shared_expert", "share_expert", "shared_mlp")
"""Beginnings of a part that holds experts which every token passes."""

ACTIVATIONS: Final = _words("act act_fn activation activation_fn intermediate_act_fn")
"""What modules that are activation functions are called."""

WRAPPERS: Final = _words("norm_attn_norm layernorm_attn")
"""Containers that mean nothing by themselves."""

ATTENTION_LEAVES: Final[Mapping[str, str]] = _each(
    q_proj="q_proj query q wq q_lin to_q query_proj q_linear linear_q",
    k_proj="k_proj key k wk k_lin to_k key_proj k_linear linear_k",
    v_proj="v_proj value v wv v_lin to_v value_proj v_linear linear_v",
    qkv_proj="qkv qkv_proj c_attn query_key_value wqkv in_proj w_pack qkv_layer",
    o_proj="o_proj out_proj dense wo out_lin to_out proj c_proj o out linear_out",
    q_norm="q_norm q_layernorm query_layernorm q_ln norm_q query_norm",
    k_norm="k_norm k_layernorm key_layernorm k_ln norm_k key_norm",
    q_a_proj="q_a_proj",
    q_b_proj="q_b_proj",
    kv_a_proj="kv_a_proj_with_mqa kv_a_proj",
    kv_b_proj="kv_b_proj",
    q_a_norm="q_a_layernorm q_a_norm",
    kv_a_norm="kv_a_layernorm kv_a_norm",
    kv_proj="kv_proj",
    relative_position="relative_attention_bias",
)
"""Last part inside an attention module → place."""

MLP_LEAVES: Final[Mapping[str, str]] = _each(
    gate_proj="gate_proj wi_0 c_fc_0 fc12",
    up_proj="up_proj wi_1 wi fc1 fc_in c_fc c_fc_1 dense_h_to_4h lin1 linear_fc1 linear1 fc11 intermediate_dense",
    gate_up_proj="gate_up_proj gate_and_up_proj up_gate_proj w12 w13 gate_up input_linear proj_1 weights_in",
    down_proj="down_proj wo fc2 fc_out c_proj dense_4h_to_h lin2 linear_fc2 linear2 output_linear proj_2 weights_out"
    " output_dense",
)
"""Last part inside an MLP → place; w1, w2, w3 depend on their fellows."""

BLOCK_LEAVES: Final[Mapping[str, str]] = {
    "att_proj": "attention.qkv_proj",
    "attn_out": "attention.o_proj",
    "wqkv": "attention.qkv_proj",
    "q_norm": "attention.q_norm",
    "k_norm": "attention.k_norm",
    "ff_proj": "mlp.gate_up_proj",
    "ff_out": "mlp.down_proj",
    "ffn_output": "mlp.down_proj",
}
"""Right inside a block that has no modules for attention or for its MLP → place."""

MIXER_LEAVES: Final[Mapping[str, str]] = _each(
    in_proj="in_proj",
    in_proj_qkvz="in_proj_qkvz",
    in_proj_qkv="in_proj_qkv",
    in_proj_z="in_proj_z",
    in_proj_ba="in_proj_ba",
    in_proj_b="in_proj_b",
    in_proj_a="in_proj_a",
    x_proj="x_proj",
    dt_proj="dt_proj",
    conv1d="conv1d conv conv_1d",
    norm="norm",
    dt_norm="dt_layernorm dt_norm",
    b_norm="b_layernorm b_norm",
    c_norm="c_layernorm c_norm",
    out_proj="out_proj o_proj",
)

BLOCK_NORMS: Final[Mapping[str, str]] = _each(
    input_norm="input_layernorm ln_1 ln1 norm1 norm_1 layer_norm1 attention_norm self_attn_layer_norm layernorm_before"
    " operator_norm attn_norm input_norm norm pre_attention_layernorm layer_norm_1 ln_attn temporal_pre_norm",
    post_attention_norm="post_attention_layernorm ln_2 ln2 norm2 norm_2 layer_norm2 ffn_norm layernorm_after"
    " final_layer_norm mlp_norm post_attention_norm sa_layer_norm attention.output.layernorm ln_mlp layer_norm_2"
    " channel_pre_norm",
    pre_mlp_norm="pre_feedforward_layernorm pre_ff_layernorm pre_mlp_layernorm pre_mlp_norm",
    post_mlp_norm="post_feedforward_layernorm post_mlp_layernorm output_layer_norm output.layernorm post_mlp_norm",
    cross_attention_norm="encoder_attn_layer_norm cross_attn_layer_norm",
)
"""Norms right inside a block → place."""

PREDICTION_LEAVES: Final[Mapping[str, str]] = _each(
    eh_proj="eh_proj fc linear_proj mtp_linear_proj",
    embedding_norm="enorm pre_fc_norm_embedding mtp_emb_norm",
    hidden_norm="hnorm pre_fc_norm_hidden mtp_hidden_norm",
    embedding="embed_tokens",
    final_norm="shared_head.norm norm final_layernorm",
    head="shared_head.head lm_head",
)

EMBEDDINGS: Final[Mapping[str, str]] = _each(
    embedding="embed_tokens wte word_embeddings tok_embeddings embed_in token_embedding token_embeddings embeddings"
    " embedding shared word_embedding word_token_embedding",
    position_embedding="wpe embed_positions position_embeddings position_embedding positional_embedding pos_embed"
    " pos_emb relative_attention_bias rel_embeddings",
    type_embedding="token_type_embeddings token_type_embedding",
    embedding_norm="embeddings.layernorm word_embeddings_layernorm embed_norm embeddings.norm layernorm_embedding"
    " embeddings.layer_norm emb_norm emb_ln",
)
"""Outside blocks → place relative to the tower."""

FINAL_NORMS: Final[Mapping[str, str]] = _each(
    final_norm="norm norm_f ln_f final_layernorm final_layer_norm final_norm layernorm layer_norm post_layernorm"
    " ln_post layernorm_post",
    pre_norm="pre_layrnorm pre_layernorm ln_pre layernorm_pre",
)

HEADS: Final = _words(
    "lm_head embed_out output output_layer classifier score qa_outputs head proj_out vocab_projector lm_head.decoder"
    " predictions.decoder classifier.out_proj logits class_labels_classifier ff_out codec_head v_head value_head"
)
HEAD_TRANSFORMS: Final[Mapping[str, str]] = _each(
    proj="transform.dense lm_head.dense vocab_transform head.dense classifier.dense predictions.dense",
    norm="predictions.layernorm transform.layernorm lm_head.layer_norm vocab_layer_norm head.norm",
)

BARE_EMBEDDINGS: Final = ("embed", "cls_token", "mask_token", "dist_token", "class_token", "register_token", "pos_emb")
"""What bare parameters of an embedding module are called, in part."""

CLASS_KINDS: Final[tuple[tuple[str, Kind], ...]] = (
    ("Router", "router"),
    ("Experts", "moe"),
    ("Norm", "norm"),
    ("Embedding", "embedding"),
    ("Attention", "attention"),
    ("Activation", "activation"),
    ("ReLU", "activation"),
    ("GELU", "activation"),
    ("Gelu", "activation"),
    ("Linear", "linear"),
    ("Conv1D", "linear"),
    ("Conv1d", "conv"),
    ("Conv2d", "conv"),
    ("Conv3d", "conv"),
)
"""End of a module's class name → kind. `Conv1D` is GPT-2's transposed linear."""

ACTIVATION_CLASSES: Final = _words("SiLU Tanh Sigmoid Mish Softplus ELU CELU SELU Hardswish Hardsigmoid Hardtanh Swish")
ACTIVATION_BEGINNINGS: Final = ("GELU", "ReLU", "LeakyReLU", "PReLU", "RReLU")


def unwrapped(name: str) -> str:
    """A linear layer's name without what wraps it: PEFT's `q_proj.base_layer`, or `q_proj.linear`."""
    parent, _, last = name.rpartition(".")
    if last == "base_layer":
        return parent
    if last == "linear" and parent.rpartition(".")[2].lower() in _WRAPPED:
        return parent
    return name


_WRAPPED: Final = ATTENTION_LEAVES.keys() | MLP_LEAVES.keys()


def kind_by_word(last: str, parent: str) -> Kind:
    """The kind that a layer's last part tells; `other` if it tells none."""
    word = last.lower()
    above = parent.rpartition(".")[2].lower()
    if word == INDEX and ("norm" in above or "proj" in above):
        return kind_by_word(above, "")
    if "norm" in word or word in ("ln", "layernorm") or word.endswith("_ln") or _NORMS.match(word):
        return "norm"
    if "patch_embed" in word or "patch_embed" in parent.lower() or "conv" in word:
        return "conv"
    if word.endswith(("proj", "projection", "projector", "projections", "mapping_in")):
        return "linear"
    if "embed" in word or word.endswith("_emb") or word in ("wte", "wpe"):
        return "embedding"
    if word in _ALSO_LINEAR or word.endswith(("linear", "dense", "_lin", "fc")) or word.startswith(_LINEAR):
        return "linear"
    return "other"


_NORMS: Final = re.compile(r"ln_|[lb]n\d")
_LINEAR: Final = (
    *("linear", "fc", "dense", "wq", "wk", "wv", "wo", "w1", "w2", "w3", "to_", "in_proj", "out_proj", "proj_"),
    *("kv_a_proj", "w_in", "w_out"),
)
_ALSO_LINEAR: Final = _words("att_proj attn_out ff_out output_gate merging_layer")
