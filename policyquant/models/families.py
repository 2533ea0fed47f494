"""Which model a `config.json` describes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from torch import nn

from policyquant.errors import PolicyQuantError, did_you_mean
from policyquant.models.config import read_config
from policyquant.models.decoder import DecoderForCausalLM
from policyquant.models.llama import LlamaForCausalLM
from policyquant.models.mixtral import MixtralForCausalLM, Qwen3MoeForCausalLM

FAMILIES: Final[Mapping[str, type[DecoderForCausalLM]]] = {
    "llama": LlamaForCausalLM,
    "mistral": LlamaForCausalLM,
    "mixtral": MixtralForCausalLM,
    "qwen2": LlamaForCausalLM,
    "qwen3": LlamaForCausalLM,
    "qwen3_moe": Qwen3MoeForCausalLM,
}
"""`model_type` of a `config.json` → the model."""


def model_factory(config: Mapping[str, object]) -> Callable[[], nn.Module]:
    """A function that constructs the model which the parsed `config.json` describes; each call makes a new one.

    Raises:
        PolicyQuantError: this is no mapping, the `model_type` is missing or unknown, a size is missing, or a variant is
            not implemented.
    """
    if not isinstance(config, Mapping):
        raise PolicyQuantError(
            f"model_factory takes the parsed config.json, found {type(config).__name__}; json.loads reads it, and"
            " Inventory.open(path).config is it"
        )
    family = config.get("model_type")
    expected = f"expected one of {', '.join(FAMILIES)}"
    if not isinstance(family, str):
        found = "is missing" if family is None else f"is {family!r}"
        raise PolicyQuantError(f"config.json: model_type {found}; {expected}")
    model = FAMILIES.get(family)
    if model is None:
        raise PolicyQuantError(
            f"config.json: there is no model for model_type {family!r}; {expected}{did_you_mean(family, FAMILIES)}"
        )
    read_config(config)
    return partial(model, copy.deepcopy(dict(config)))
