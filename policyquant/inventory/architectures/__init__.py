"""Architecture data: one file per family of models, imported only when a model of that family is at hand."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from policyquant.inventory.architectures.family import Family
    from policyquant.inventory.layers import StoredSet

_BY_MODEL_TYPE: Final[Mapping[str, str]] = {
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "llama",
    "qwen3": "llama",
    "mixtral": "mixtral",
    "qwen2_moe": "qwen_moe",
    "qwen3_moe": "qwen_moe",
    "deepseek_v2": "deepseek",
    "deepseek_v3": "deepseek",
    "kimi_k2": "deepseek",
    "gpt_oss": "gpt_oss",
    "gemma3": "gemma3",
    "gemma3_text": "gemma3",
    "phi3": "phi3",
    "qwen2_vl": "qwen2_vl",
    "qwen2_5_vl": "qwen2_5_vl",
    "gpt2": "gpt2",
    "opt": "opt",
    "bert": "bert",
    "t5": "t5",
    "vit": "vit",
    "mamba2": "mamba2",
}
"""`model_type` of a configuration → file."""

_BY_CLASS: Final[Mapping[str, str]] = {
    "Llama": "llama",
    "Mistral": "llama",
    "Qwen2": "llama",
    "Qwen3": "llama",
    "Mixtral": "mixtral",
    "Qwen2Moe": "qwen_moe",
    "Qwen3Moe": "qwen_moe",
    "DeepseekV2": "deepseek",
    "DeepseekV3": "deepseek",
    "GptOss": "gpt_oss",
    "Gemma3": "gemma3",
    "Phi3": "phi3",
    "Qwen2VL": "qwen2_vl",
    "Qwen2_5_VL": "qwen2_5_vl",
    "GPT2": "gpt2",
    "OPT": "opt",
    "Bert": "bert",
    "T5": "t5",
    "ViT": "vit",
    "Mamba2": "mamba2",
}
"""What stands before `For…`, `Model` or `LMHead` in `architectures` → file."""

_BY_NAME: Final = (
    (".block_sparse_moe.experts.#.w1", "mixtral"),
    (".self_attn.kv_a_proj_with_mqa", "deepseek"),
    (".mlp.experts.#.gate_proj", "qwen_moe"),
    (".mlp.router", "gpt_oss"),
    ("visual.blocks.#.mlp.gate_proj", "qwen2_5_vl"),
    ("visual.blocks.#.mlp.fc1", "qwen2_vl"),
    ("multi_modal_projector.mm_soft_emb_norm", "gemma3"),
    (".self_attn.qkv_proj", "phi3"),
    (".attn.c_attn", "gpt2"),
    ("decoder.layers.#.self_attn_layer_norm", "opt"),
    (".attention.self.query", "bert"),
    (".DenseReluDense.wo", "t5"),
    (".attention.attention.query", "vit"),
    (".mixer.conv1d", "mamba2"),
    (".mlp.gate_proj", "llama"),
)
"""End of a template that only this family has, for models that come without a configuration; likelier ones first."""


def family_named(name: str) -> Family:
    """The data of one family, by the name of its file."""
    family: Family = import_module(f"{__name__}.{name}").FAMILY
    return family


def family_names() -> tuple[str, ...]:
    """All families that have data of their own."""
    return tuple(sorted(set(_BY_MODEL_TYPE.values())))


def find_family(config: Mapping[str, object], sets: Iterable[StoredSet]) -> Family | None:
    """The family of a model by its configuration or, without one, by its names; None if it has no data of its own.

    A configuration is not believed if the family knows less than half of the names.
    """
    sets = tuple(sets)
    model_type = config.get("model_type")
    classes = architectures(config)
    if not isinstance(model_type, str) and not classes:
        templates = [stored.template for stored in sets]
        for end, name in _BY_NAME:
            if any(template.endswith(end) for template in templates):
                family = family_named(name)
                if _known(family, sets) == len(sets):
                    return family
        return None
    if isinstance(model_type, str):
        file = _BY_MODEL_TYPE.get(model_type)
    else:
        file = next((known for each in classes if (known := _BY_CLASS.get(_class_stem(each)))), None)
    if file is None:
        return None
    family = family_named(file)
    return family if 2 * _known(family, sets) >= len(sets) else None


def likely_naming(config: Mapping[str, object], sets: Iterable[StoredSet]) -> Literal["checkpoint", "module"]:
    """Whose names they are, where nobody says: those of a module tree if more of them exist in transformers v5 alone
    than in checkpoints alone."""
    sets = tuple(sets)
    family = find_family(config, sets)
    if family is None:
        return "checkpoint"
    spellings = family.spellings
    of_modules = sum(each.template not in spellings.by_checkpoint for each in sets)
    of_checkpoints = sum(each.template not in spellings.by_module for each in sets)
    # A module that holds all experts is in both tables; only a tree has one where checkpoints store experts singly.
    of_modules += sum(any(entry.experts for entry in spellings.by_module.get(each.template, ())) for each in sets)
    return "module" if of_modules > of_checkpoints else "checkpoint"


def architectures(config: Mapping[str, object]) -> tuple[str, ...]:
    """Class names that a configuration gives."""
    names = config.get("architectures")
    return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list | tuple) else ()


def _class_stem(name: str) -> str:
    for end in ("LMHead", "For", "Model"):
        before, found, _ = name.partition(end)
        if found:
            return before
    return name


def _known(family: Family, sets: Iterable[StoredSet]) -> int:
    return sum(bool(family.spellings.find(stored.template, as_module=False)) for stored in sets)
