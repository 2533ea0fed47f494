"""Stage: whole models, decoding and prefill, under an FP8 policy beside BF16, as replayed CUDA graphs.

A Mistral of 7B's shape and eight layers of Mixtral, with random weights: speed does not depend on them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from benchmarks.gpu.measure import seconds_of
from benchmarks.gpu.stage import Stage, main
from policyquant import build
from policyquant.models.families import model_factory

MISTRAL: Final[Mapping[str, Any]] = {
    "model_type": "mistral",
    "architectures": ["MistralForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}
MIXTRAL: Final[Mapping[str, Any]] = {
    **MISTRAL,
    "model_type": "mixtral",
    "architectures": ["MixtralForCausalLM"],
    "num_hidden_layers": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
TINY: Final[Mapping[str, Any]] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 64,
}
FP8: Final[Mapping[str, Any]] = {"layers": [{"match": "decoder.*", "kind": ["linear", "moe"], "method": "fp8"}]}
FUSED: Final[Mapping[str, Any]] = {
    "layers": [
        *FP8["layers"],
        {"match": ["decoder.*.mlp.act", "decoder.*.input_norm"], "output": "fp8", "optional": True},
        {"match": "decoder.*.post_attention_norm", "output": "fp8", "optional": True},
    ]
}
DECODE_AT_LEAST: Final = 1.5
PREFILL_AT_LEAST: Final = 1.3


def run(stage: Stage) -> None:
    """The dense model first; a model for which no time is left is not measured."""
    rows: dict[str, Any] = {}
    missed = []
    for name, config in (("Mistral-7B", MISTRAL), ("Mixtral, 8 layers", MIXTRAL)):
        if stage.left < 15:
            rows[name] = "not measured"
            continue
        rows[name] = _model({**config, **(TINY if stage.rehearse else {})}, stage)
        stage.write(models=rows)
        bars = rows[name]["bars"]
        missed += [f"{name} {what}" for what, (ratio, at_least) in bars.items() if ratio < at_least]
    stage.write(models=rows)
    if missed and not stage.rehearse:
        stage.fail(", ".join(missed))


def _model(config: Mapping[str, Any], stage: Stage) -> dict[str, Any]:
    device = "cpu" if stage.rehearse else "cuda"
    policies: dict[str, Any] = {"bf16": {"default": "none", "layers": []}, "fp8": FP8}
    if "num_local_experts" not in config:
        policies["fp8, fused outputs"] = FUSED
    lengths = {"decode, batch 1": (1, 1), "decode, batch 32": (32, 1), "prefill, 8192 tokens": (1, 8192)}
    if stage.rehearse:
        lengths = {"decode, batch 1": (1, 1), "prefill, 8192 tokens": (1, 4)}
    seconds: dict[str, dict[str, float]] = {what: {} for what in lengths}
    for policy, rules in policies.items():
        model = _built(config, rules, device)
        for what, (batch, positions) in lengths.items():
            filled = 0 if positions > 1 else (8 if stage.rehearse else 512)
            call = _step(model, batch, positions, filled, device)
            seconds[what][policy] = seconds_of(call, [None], device, replays=10)
            print(f"{config['model_type']} {policy}, {what}: {1e3 * seconds[what][policy]:.2f} ms", flush=True)
        del model
        if device == "cuda":
            torch.cuda.empty_cache()
    bars = {
        what: (each["bf16"] / min(value for name, value in each.items() if name != "bf16"), _at_least(what))
        for what, each in seconds.items()
    }
    return {"seconds": seconds, "bars": bars}


def _at_least(what: str) -> float:
    return PREFILL_AT_LEAST if what.startswith("prefill") else DECODE_AT_LEAST


def _built(config: Mapping[str, Any], rules: Mapping[str, Any], device: str) -> Any:
    factory = model_factory(config)
    with torch.device("meta"):
        layout = factory().state_dict()
    weights: dict[str, torch.Tensor] = {}
    for name, tensor in layout.items():
        random = torch.empty(tensor.shape, dtype=torch.bfloat16, device=device).normal_(std=0.02)
        weights |= _as_stored(name, random)
    return build(factory, policy=rules, source=weights, device=device)


def _as_stored(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """Experts as Mixtral's checkpoints store them, each for itself; everything else as it is."""
    stem, experts, last = name.partition(".experts.")
    if not experts:
        return {name: tensor}
    parts = {"w1": tensor.chunk(2, 1)[0], "w3": tensor.chunk(2, 1)[1]} if "gate_up" in last else {"w2": tensor}
    return {
        f"{stem}.experts.{index}.{part}.weight": each[index]
        for part, each in parts.items()
        for index in range(tensor.shape[0])
    }


def _step(model: Any, batch: int, positions: int, filled: int, device: str) -> Callable[[object], object]:
    """A forward pass of `positions` tokens behind `filled` ones."""
    ids = torch.randint(0, model.config["vocab_size"], (batch, positions), device=device)
    caches = model.new_caches(batch, filled + positions)

    def step(_: object) -> object:
        for cache in caches:
            cache.length = filled
        with torch.no_grad():
            return model(ids, caches, last_only=True)

    return step


if __name__ == "__main__":
    main(run)
