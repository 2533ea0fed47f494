"""Tensor names of models that common spellings do not fit at once: each was once misunderstood."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from tests.inventory.other_models import Other

_CHOICE = re.compile(r"\{([^}]*)\}")


def _names(lines: str) -> Iterator[str]:
    """One name for each choice in braces; `.weight` is added to all but those that end with `!`."""
    for line in lines.split():
        choices = _CHOICE.split(line)
        options = [[text] if at % 2 == 0 else text.split(",") for at, text in enumerate(choices)]
        for chosen in product(*options):
            name = "".join(chosen)
            yield name.removesuffix("!") if name.endswith("!") else f"{name}.weight"


def _other(model_type: str, architecture: str, lines: str, **config: Any) -> Other:
    values = {"model_type": model_type, "architectures": [architecture], **config}
    return Other(values, tuple(_names(lines)))


_TOP = "model.embed_tokens model.norm lm_head"
_GATED = "{gate_proj,up_proj,down_proj}"


def _llama(block: str) -> str:
    return (
        f"{block}.self_attn.{{q,k,v,o}}_proj {block}.mlp.{_GATED} {block}.{{input_layernorm,post_attention_layernorm}}"
    )


def _clip(block: str) -> str:
    return f"{block}.self_attn.{{q,k,v,out}}_proj {block}.mlp.{{fc1,fc2}} {block}.{{layer_norm1,layer_norm2}}"


_KDA = "self_attn.{q_proj,k_proj,v_proj,q_conv1d,k_conv1d,v_conv1d,f_a_proj,f_b_proj,b_proj,o_norm,o_proj}"
_MLA = "self_attn.{q_proj,kv_a_proj_with_mqa,kv_a_layernorm,kv_b_proj,o_proj}"

UNUSUAL: Mapping[str, Other] = {
    "Step-3.5": _other(
        "step3p5",
        "Step3p5ForCausalLM",
        f"{_TOP} model.layers.{{0,1}}.self_attn.{{q,k,v,o,g}}_proj model.layers.{{0,1}}.moe.{{gate,{_GATED[1:-1]}}}"
        f" model.layers.{{0,1}}.moe.router_bias! model.layers.{{0,1}}.share_expert.{_GATED}",
    ),
    "JetMoE": _other(
        "jetmoe",
        "JetMoeForCausalLM",
        "model.embed_tokens model.norm model.layers.{0,1}.self_attention.kv_proj"
        " model.layers.{0,1}.self_attention.experts.{input_linear,output_linear,router.layer}"
        " model.layers.{0,1}.self_attention.experts.bias! model.layers.{0,1}.mlp.bias!"
        " model.layers.{0,1}.mlp.{input_linear,output_linear,router.layer}",
    ),
    "Idefics3": _other(
        "idefics3",
        "Idefics3ForConditionalGeneration",
        f"lm_head model.connector.modality_projection.proj model.text_model.{{embed_tokens,norm}}"
        f" {_llama('model.text_model.layers.{0,1}')} {_clip('model.vision_model.encoder.layers.{0,1}')}"
        " model.vision_model.embeddings.{patch_embedding,position_embedding} model.vision_model.post_layernorm",
    ),
    "Molmo": _other(
        "molmo",
        "MolmoForCausalLM",
        "model.transformer.wte.embedding! model.transformer.wte.new_embedding! model.transformer.{ln_f,ff_out}"
        " model.transformer.blocks.{0,1}.{att_proj,attn_out,attn_norm,ff_proj,ff_out,ff_norm,q_norm,k_norm}"
        " model.vision_backbone.image_projector.{w1,w2,w3} model.vision_backbone.image_vit.patch_embedding"
        " model.vision_backbone.image_vit.transformer.resblocks.{0,1}.attention.{wq,wk,wv,wo}"
        " model.vision_backbone.image_vit.transformer.resblocks.{0,1}.feed_forward.{w1,w2}",
    ),
    "Kimi-VL": _other(
        "kimi_vl",
        "KimiVLForConditionalGeneration",
        "language_model.model.embed_tokens language_model.model.norm language_model.lm_head"
        f" {_llama('language_model.model.layers.{0,1}')} vision_tower.patch_embed.{{proj,pos_emb}}"
        " multi_modal_projector.{pre_norm,linear_1,linear_2} vision_tower.encoder.final_layernorm"
        " vision_tower.encoder.blocks.{0,1}.{wqkv,wo,mlp.fc0,mlp.fc1,norm0,norm1}",
    ),
    "Kimi-Linear": _other(
        "kimi_linear",
        "KimiLinearForCausalLM",
        f"{_TOP} model.layers.{{0,1}}.{_KDA} model.layers.{{0,1}}.self_attn.{{A_log,dt_bias}}!"
        f" model.layers.2.{_MLA} model.layers.{{0,1,2}}.mlp.{_GATED}",
    ),
    "MiniMax-Text": _other(
        "minimax",
        "MiniMaxForCausalLM",
        f"{_TOP} model.layers.0.self_attn.{{qkv_proj,output_gate,out_proj,norm}}"
        " model.layers.1.self_attn.{q,k,v,o}_proj model.layers.{0,1}.block_sparse_moe.gate"
        " model.layers.{0,1}.block_sparse_moe.experts.{0,1}.{w1,w2,w3}",
    ),
    "RWKV-7": _other(
        "rwkv7",
        "RWKV7ForCausalLM",
        "model.embeddings model.norm lm_head model.layers.{0,1}.attn.{r_proj,k_proj,v_proj,o_proj,g_norm}"
        " model.layers.{0,1}.attn.{x_r,k_k}! model.layers.{0,1}.ffn.{key,value}",
    ),
    "Nemotron-H, with states": _other(
        "nemotron_h",
        "NemotronHForCausalLM",
        "backbone.embeddings backbone.norm_f lm_head backbone.layers.{0,1,2}.norm"
        " backbone.layers.0.mixer.{in_proj,out_proj,conv1d,norm} backbone.layers.0.mixer.{A_log,D,dt_bias}!"
        " backbone.layers.1.mixer.{q,k,v,o}_proj backbone.layers.2.mixer.{up_proj,down_proj}",
    ),
    "PLaMo 2": _other(
        "plamo2",
        "Plamo2ForCausalLM",
        "model.embed_tokens model.norm model.layers.layers.{0,1}.mixer.{in_proj,bcdt_proj,dt_proj,conv1d,out_proj}"
        " model.layers.layers.2.mixer.{qkv_proj,o_proj} model.layers.layers.{0,1,2}.mlp.{gate_up_proj,down_proj}",
    ),
    "ChatGLM": _other(
        "chatglm",
        "ChatGLMModel",
        "transformer.embedding.word_embeddings transformer.encoder.final_layernorm transformer.output_layer"
        " transformer.encoder.layers.{0,1}.self_attention.{query_key_value,dense}"
        " transformer.encoder.layers.{0,1}.mlp.{dense_h_to_4h,dense_4h_to_h}",
    ),
    "Qwen2.5-Omni": _other(
        "qwen2_5_omni",
        "Qwen2_5OmniForConditionalGeneration",
        f"thinker.model.embed_tokens thinker.model.norm thinker.lm_head {_llama('thinker.model.layers.{0,1}')}"
        " talker.model.embed_tokens talker.model.norm talker.codec_head talker.thinker_to_talker_proj"
        f" {_llama('talker.model.layers.{0,1}')}",
    ),
    "SigLIP": _other(
        "siglip",
        "SiglipModel",
        f"text_model.head text_model.final_layer_norm text_model.embeddings.{{token_embedding,position_embedding}}"
        f" {_clip('text_model.encoder.layers.{0,1}')} {_clip('vision_model.encoder.layers.{0,1}')}"
        " vision_model.embeddings.{patch_embedding,position_embedding} vision_model.post_layernorm"
        " vision_model.head.{attention.out_proj,layernorm,mlp.fc1,mlp.fc2} vision_model.head.probe!",
    ),
    "Gemma 3n": _other(
        "gemma3n",
        "Gemma3nForConditionalGeneration",
        "model.language_model.embed_tokens model.language_model.norm model.language_model.altup_projections.{0,1}"
        f" {_llama('model.language_model.layers.{0,1}')}"
        " model.embed_vision.{embedding,soft_embedding_norm,embedding_projection}"
        " model.embed_audio.{embedding,embedding_projection} model.vision_tower.timm_model.conv_stem.conv"
        " model.audio_tower.conformer.{0,1}.attention.attn.{q,k,v}_proj"
        " model.audio_tower.conformer.{0,1}.lconv1d.{depthwise_conv1d,conv_norm}",
    ),
    "ALBERT": _other(
        "albert",
        "AlbertForMaskedLM",
        "albert.embeddings.{word_embeddings,position_embeddings,LayerNorm} albert.pooler"
        " albert.encoder.embedding_hidden_mapping_in predictions.{decoder,dense,LayerNorm} predictions.bias!"
        " albert.encoder.albert_layer_groups.0.albert_layers.0.attention.{query,key,value,dense,LayerNorm}"
        " albert.encoder.albert_layer_groups.0.albert_layers.0.{ffn,ffn_output,full_layer_layer_norm}",
    ),
    "Fuyu": _other(
        "fuyu",
        "FuyuForCausalLM",
        "language_model.model.embed_tokens language_model.lm_head vision_embed_tokens"
        " language_model.model.layers.{0,1}.self_attn.{query_key_value,dense}"
        " language_model.model.layers.{0,1}.mlp.{dense_h_to_4h,dense_4h_to_h}",
    ),
    "GLM-4V": _other(
        "glm4v",
        "Glm4vForConditionalGeneration",
        f"lm_head model.language_model.embed_tokens {_llama('model.language_model.layers.{0,1}')}"
        " model.visual.patch_embed.proj model.visual.post_conv_layernorm"
        f" model.visual.blocks.{{0,1}}.{{attn.qkv,attn.proj,norm1,norm2}} model.visual.blocks.{{0,1}}.mlp.{_GATED}",
    ),
    "Phi-4-multimodal": _other(
        "phi4mm",
        "Phi4MMForCausalLM",
        "model.embed_tokens model.norm model.layers.{0,1}.self_attn.qkv_proj.{base_layer,lora_A.vision,lora_B.vision}"
        " model.layers.{0,1}.{self_attn.o_proj,mlp.gate_up_proj,mlp.down_proj}.base_layer",
    ),
    "EXAONE 3": _other(
        "exaone",
        "ExaoneForCausalLM",
        "transformer.wte transformer.ln_f lm_head transformer.h.{0,1}.attn.attention.{q,k,v,out}_proj"
        " transformer.h.{0,1}.mlp.{c_fc_0,c_fc_1,c_proj} transformer.h.{0,1}.{ln_1,ln_2}",
    ),
    "OpenELM": _other(
        "openelm",
        "OpenELMForCausalLM",
        "transformer.token_embeddings transformer.norm transformer.layers.{0,1}.attn.{qkv_proj,out_proj}"
        " transformer.layers.{0,1}.ffn.{proj_1,proj_2}",
    ),
    "DINOv2-giant": _other(
        "dinov2",
        "Dinov2Model",
        "embeddings.cls_token! embeddings.patch_embeddings.projection layernorm"
        " encoder.layer.{0,1}.attention.attention.{query,key,value} encoder.layer.{0,1}.attention.output.dense"
        " encoder.layer.{0,1}.mlp.{weights_in,weights_out} encoder.layer.{0,1}.{norm1,norm2}",
    ),
    "LongCat": _other(
        "longcat_flash",
        "LongcatFlashForCausalLM",
        f"{_TOP} model.layers.{{0,1}}.self_attn.{{0,1}}.{_MLA[len('self_attn.') :]}"
        f" model.layers.{{0,1}}.mlps.{{0,1}}.{_GATED} model.layers.{{0,1}}.input_layernorm.{{0,1}}"
        " model.layers.{0,1}.mlp.router.classifier model.layers.{0,1}.mlp.router.e_score_correction_bias!"
        f" model.layers.{{0,1}}.mlp.experts.{{0,1}}.{_GATED}",
    ),
    "Apertus": _other(
        "apertus",
        "ApertusForCausalLM",
        f"{_TOP} model.layers.{{0,1}}.self_attn.{{q,k,v,o}}_proj model.layers.{{0,1}}.mlp.{{up_proj,down_proj}}"
        " model.layers.{0,1}.mlp.act_fn.{alpha_n,alpha_p}!",
    ),
    "wav2vec 2.0": _other(
        "wav2vec2",
        "Wav2Vec2ForCTC",
        "wav2vec2.feature_projection.{layer_norm,projection} wav2vec2.encoder.layer_norm lm_head"
        " wav2vec2.feature_extractor.conv_layers.{0,1}.conv wav2vec2.feature_extractor.conv_layers.0.layer_norm"
        " wav2vec2.encoder.layers.{0,1}.attention.{q,k,v,out}_proj"
        " wav2vec2.encoder.layers.{0,1}.feed_forward.{intermediate_dense,output_dense}",
    ),
    "Qwen3-VL-MoE": _other(
        "qwen3_vl_moe",
        "Qwen3VLMoeForConditionalGeneration",
        "lm_head model.language_model.embed_tokens model.language_model.layers.{0,1}.self_attn.{q,k,v,o}_proj"
        " model.language_model.layers.{0,1}.mlp.gate model.language_model.layers.{0,1}.mlp.experts.gate_up_proj!"
        " model.language_model.layers.{0,1}.mlp.experts.down_proj!",
    ),
}
