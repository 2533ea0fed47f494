"""Decoding one token at batch 1: our layers with `none` beside the same model made of `nn.Linear` and `nn.Embedding`.

Both are SmolLM2-135M's sizes in BF16 and share every parameter, so they read the same memory; the other modules are the
same objects' copies. Steps take turns, and the median of the ratios of neighbours is judged.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn

from benchmarks.build_smollm2 import SMALL
from benchmarks.checkpoints import llama_config
from benchmarks.models import read_model
from benchmarks.report import Bar, Outcome, times
from benchmarks.timing import Timing
from policyquant.layers.base import WeightLayer
from policyquant.models.decoder import DecoderForCausalLM
from policyquant.models.families import model_factory

NEEDS: Final = ("torch",)
MOST_PERCENT: Final = 3.0
POSITIONS: Final = 64
"""Filled in the KV cache before the token in question."""


def run(*, tiny: bool = False) -> Outcome:
    """Every step decodes the same token at the same position."""
    config = SMALL if tiny else llama_config(**{"rms_norm_eps": 1e-5, **read_model("SmolLM2-135M")["config"]})
    ours: Any = model_factory(config)()
    plain = plain_twin(ours)
    steps = _step(ours), _step(plain)
    if not torch.equal(steps[0](), steps[1]()):
        raise RuntimeError("our layers and nn.Linear differ in what they compute")
    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in range(4 if tiny else 400):
        for place in (0, 1) if turn % 2 else (1, 0):
            start = time.perf_counter()
            steps[place]()
            seconds[place].append(time.perf_counter() - start)
    slower = statistics.median(own / other for own, other in zip(*seconds, strict=True)) - 1
    outcome = Outcome()
    outcome.tables.append(
        times(
            f"{'A small model' if tiny else 'SmolLM2-135M'}, one token after {POSITIONS}, {len(seconds[0])} steps,"
            f" {torch.get_num_threads()} threads",
            ("policyquant layers, none", "nn.Linear and nn.Embedding"),
            [Timing(tuple(each)) for each in seconds],
        )
    )
    outcome.bars.append(Bar("our layers are slower by", 100 * slower, "at most", MOST_PERCENT, "%"))
    return outcome


def plain_twin(model: DecoderForCausalLM) -> DecoderForCausalLM:
    """The same model with torch's own layers in place of those that own weights; parameters are shared."""
    memo: dict[int, Any] = {id(parameter): parameter for parameter in model.parameters()}
    twin = copy.deepcopy(model, memo)
    for module in list(twin.modules()):
        for name, child in module.named_children():
            if isinstance(child, WeightLayer):
                setattr(module, name, _plain(child))
    return twin


def _plain(layer: WeightLayer) -> nn.Module:
    with torch.device("meta"):
        made: nn.Module
        if isinstance(layer, nn.Embedding):
            made = nn.Embedding(layer.num_embeddings, layer.embedding_dim)
        else:
            made = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
            made.bias = layer.bias
    made.weight = layer.weight
    return made


def _step(model: Any) -> Callable[[], torch.Tensor]:
    """Decodes one token behind a prompt."""
    with torch.inference_mode():
        # A model of torch's own layers does not know its logical dtype; the cache is made as the other's is.
        caches = [
            layer.self_attn.attn.new_cache(1, POSITIONS + 1, dtype=torch.bfloat16) for layer in model.model.layers
        ]
        model(torch.arange(POSITIONS)[None] % 50, caches)
    token = torch.tensor([[7]])

    def step() -> torch.Tensor:
        with torch.inference_mode():
            for cache in caches:
                cache.length = POSITIONS
            logits: torch.Tensor = model(token, caches)
        return logits

    return step
