"""Checkpoints of one model in the forms that tools write: the same weights under other names, fused or transposed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from policyquant.building.targets import logical_state
from policyquant.models.families import model_factory

State = dict[str, torch.Tensor]

SIZES: Mapping[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 96,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
}
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": False, **SIZES}
EXPERTS = 4
MIXTRAL = {
    "model_type": "mixtral",
    "architectures": ["MixtralForCausalLM"],
    "tie_word_embeddings": False,
    "num_local_experts": EXPERTS,
    "num_experts_per_tok": 2,
    **SIZES,
}
QWEN3_MOE = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "tie_word_embeddings": False,
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "head_dim": 8,
    "norm_topk_prob": True,
    **SIZES,
}


def one_by_one(config: Mapping[str, Any], seed: int = 0) -> State:
    """Random BF16 weights, each layer and each expert a tensor of its own."""
    torch.manual_seed(seed)
    state = logical_state(model_factory(config)())
    return {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in state.items()}


def save(directory: Path, state: State, config: Mapping[str, Any] | None) -> Path:
    """A directory with one file of weights, and a config if there is one."""
    directory.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.clone().contiguous() for name, tensor in state.items()}, directory / "model.safetensors")
    if config is not None:
        (directory / "config.json").write_text(json.dumps(config))
    return directory


def fuse(state: State, parts: tuple[str, ...], fused: str, suffixes: tuple[str, ...] = ("weight", "bias")) -> State:
    """Put layers whose names end in `parts` under one another, in a layer whose name ends in `fused`."""
    result = dict(state)
    for suffix in suffixes:
        for name in state:
            if name.endswith(f".{parts[0]}.{suffix}"):
                start = name.removesuffix(f"{parts[0]}.{suffix}")
                pieces = [result.pop(f"{start}{part}.{suffix}") for part in parts]
                result[f"{start}{fused}.{suffix}"] = torch.cat(pieces)
    return result


def experts_as_3d(state: State, parts: tuple[str, str, str], *, transposed: bool = False) -> State:
    """Put the experts of each block into `experts.gate_up_proj` [E, 2I, H] and `experts.down_proj` [E, H, I]."""
    gate, up, down = parts
    result = {name: tensor for name, tensor in state.items() if ".experts." not in name}
    for name in state:
        if name.endswith(f".experts.0.{gate}.weight"):
            start = name.removesuffix(f"0.{gate}.weight")
            of = {part: [state[f"{start}{e}.{part}.weight"] for e in range(EXPERTS)] for part in parts}
            gate_up = torch.stack([torch.cat(pair) for pair in zip(of[gate], of[up], strict=True)])
            down_proj = torch.stack(of[down])
            result[f"{start}gate_up_proj"] = gate_up.mT.contiguous() if transposed else gate_up
            result[f"{start}down_proj"] = down_proj.mT.contiguous() if transposed else down_proj
    return result


def renamed(state: State, *replacements: tuple[str, str]) -> State:
    """The same tensors, with parts of their names replaced."""
    result = {}
    for name, tensor in state.items():
        for old, new in replacements:
            name = name.replace(old, new)
        result[name] = tensor
    return result


def as_fp8(state: State, layers: tuple[str, ...], granularity: str = "channel", *, static: bool = False) -> State:
    """Store the weights of layers whose names hold one of `layers` as FP8 with scales, as compressed-tensors and vLLM
    write them: `weight`, `weight_scale` [N, 1] or [], and `input_scale` [] if inputs are static."""
    result = dict(state)
    for name, tensor in state.items():
        layer, _, suffix = name.rpartition(".")
        if suffix != "weight" or tensor.dim() != 2 or not any(f".{each}" in layer for each in layers):
            continue
        values = tensor.float()
        largest = values.abs().amax(dim=1, keepdim=True) if granularity == "channel" else values.abs().amax()
        scale = largest / 448
        result[name] = (values / scale).to(torch.float8_e4m3fn)
        result[f"{layer}.weight_scale"] = scale
        if static:
            result[f"{layer}.input_scale"] = torch.tensor(0.01 + 0.001 * (len(result) % 5))
    return result


def same_state(one: nn.Module, other: nn.Module) -> None:
    """Two models hold the same tensors, to the bit."""
    first, second = one.state_dict(), other.state_dict()
    assert list(first) == list(second)
    for name, tensor in first.items():
        assert tensor.dtype == second[name].dtype, name
        assert torch.equal(tensor.view(torch.uint8), second[name].view(torch.uint8)), name
