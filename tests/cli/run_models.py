"""A tiny model to run: random weights, a byte-level tokenizer, a chat template, all saved as a checkpoint is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from policyquant.building.targets import logical_state
from policyquant.models.families import model_factory
from tests.models.tiny_models import fill

END: Final = "<|end|>"
USER: Final = "<|user|>"

CONFIG: Final[Mapping[str, Any]] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 258,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}

TEMPLATE: Final = (
    "{% for message in messages %}{{ '<|user|>' + message.content + eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|user|>' }}{% endif %}"
)

NO_SUCH_SPECIAL_TOKEN: Final[Mapping[str, Any]] = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "none", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [],
    "special_tokens": {},
}
"""A post-processor of a tokenizer that reads well, and makes the library panic when it is used."""


def byte_tokenizer() -> Tokenizer:
    """One token a byte, and two special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({mark: number for number, mark in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END, USER])
    return tokenizer


def save_model(directory: Path, **changes: Any) -> Path:
    """A directory as `save_pretrained` leaves it; `changes` are of its `config.json`."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {**CONFIG, **changes}
    model = model_factory(config)()
    fill(model)
    state = logical_state(model)
    save_file({name: tensor.to(torch.bfloat16) for name, tensor in state.items()}, directory / "model.safetensors")
    tokenizer = byte_tokenizer()
    tokenizer.save(str(directory / "tokenizer.json"))
    write_json(directory / "config.json", config)
    write_json(directory / "tokenizer_config.json", {"eos_token": {"content": END}, "chat_template": TEMPLATE})
    return directory


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")
