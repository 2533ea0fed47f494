"""Inside a whole model, each layer hands on what its reference says of the input that reached it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from policyquant import build
from policyquant.building.targets import logical_state
from policyquant.layers.base import WeightLayer
from policyquant.layers.embedding import VocabParallelEmbedding
from policyquant.models.families import model_factory
from tests.kernels import error_bounds
from tests.models.tiny_models import CONFIGS

SEVERAL_METHODS = {
    "version": 1,
    "layers": [
        {"match": "*", "method": "fp8"},
        {
            "match": "decoder.0",
            "method": "fp8",
            "weight": {"granularity": "tensor"},
            "input": {"granularity": "tensor"},
        },
        {"match": ["*.o_proj", "decoder.{0,1}.*.down_proj"], "method": "int8_weight_only"},
        {"match": "decoder.1.attention.qkv_proj", "method": "none"},
        {"match": "decoder.2.*.act", "output": "fp8"},
    ],
}


@pytest.mark.parametrize("family", ["llama, biases", "llama, tied", "mixtral", "qwen3_moe"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_layer_of_a_model_is_what_its_reference_says(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    config = CONFIGS[family]
    torch.manual_seed(0)
    state = {name: tensor.to(dtype) for name, tensor in logical_state(model_factory(config)()).items()}
    save_file(state, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = build(model_factory(config), policy=SEVERAL_METHODS, source=tmp_path, dtype=dtype)

    methods = set()

    def check(layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        assert isinstance(layer, WeightLayer)
        method, (x, *counts) = layer.quant_method, inputs
        methods.add(layer.scheme.method)
        exact = method.reference(layer, x, *counts)
        values, weight = method.reference_input(layer, x, *counts).abs(), method.reference_weight(layer).abs()
        if counts:
            sizes = torch.cat([rows @ weight[e].T for e, rows in enumerate(values.split(counts[0]))])
        else:
            sizes = values @ weight.T
        bound = error_bounds.product(sizes + exact.abs(), layer.in_features)
        error_bounds.assert_within(output, exact, bound)

    layers = [each for each in model.modules() if isinstance(each, WeightLayer)]
    for each in layers:
        if not isinstance(each, VocabParallelEmbedding):
            each.register_forward_hook(check)
    with torch.no_grad():
        model(torch.arange(12).reshape(2, 6))
    assert methods == {"none", "fp8", "int8_weight_only"}
