"""A static output without a scale takes the largest of the scales that its readers are stored with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from policyquant import Inventory, PlanConfig, build, load_policy, load_weights, resolve
from policyquant.errors import BuildError, PolicyQuantError
from policyquant.models.families import FAMILIES, model_factory
from policyquant.policy.scheme import Quantization
from policyquant.quantized_tensor import QuantizedTensor
from tests.building.test_build import IDS, LLAMA, MIXTRAL, checkpoint, named_output

STATIC = {"granularity": "tensor", "scheme": "static"}
EMITTING = ["decoder.*.mlp.act", "decoder.*.moe.experts.act", "*.input_layernorm"]
POLICY = {
    "layers": [
        {"match": "*", "method": "fp8", "input": STATIC},
        {"match": EMITTING, "optional": True, "output": {"dtype": "fp8", "scheme": "static"}},
    ]
}
READERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3")


def calibrated(directory: Path, config: Mapping[str, Any], scales: Mapping[str, float]) -> Path:
    """A checkpoint that stores an input scale for each layer: the one given for the end of its name, else 0.02."""
    checkpoint(directory, config)
    file = directory / "model.safetensors"
    state = load_file(file)
    for name in [
        name.removesuffix(".weight") for name in state if name.endswith(tuple(f"{r}.weight" for r in READERS))
    ]:
        known = [scale for end, scale in scales.items() if name.endswith(end)]
        state[f"{name}.input_scale"] = torch.tensor(known[0] if known else 0.02)
    save_file(state, file)
    return directory


def emitted_scale(model: Any, name: str) -> float:
    output = named_output(model, name)
    assert isinstance(output, QuantizedTensor)
    return float(output.scale)


def test_the_scale_is_that_of_the_one_reader(tmp_path: Path) -> None:
    source = calibrated(tmp_path, LLAMA, {"0.mlp.down_proj": 0.03, "1.mlp.down_proj": 0.05})
    model = build(model_factory(LLAMA), policy=POLICY, source=source)
    assert emitted_scale(model, "model.layers.0.mlp.act_fn") == pytest.approx(0.03)
    assert emitted_scale(model, "model.layers.1.mlp.act_fn") == pytest.approx(0.05)


def test_the_scale_is_the_largest_where_readers_differ(tmp_path: Path) -> None:
    source = calibrated(tmp_path, LLAMA, {"1.self_attn.q_proj": 0.03, "1.self_attn.k_proj": 0.07})
    model = build(model_factory(LLAMA), policy=POLICY, source=source)
    assert emitted_scale(model, "model.layers.1.input_layernorm") == pytest.approx(0.07)
    assert emitted_scale(model, "model.layers.0.input_layernorm") == pytest.approx(0.02)


def test_experts_share_the_largest_of_their_scales(tmp_path: Path) -> None:
    source = calibrated(tmp_path, MIXTRAL, {"1.block_sparse_moe.experts.2.w2": 0.09})
    model = build(model_factory(MIXTRAL), policy=POLICY, source=source)
    assert emitted_scale(model, "model.layers.1.block_sparse_moe.experts.act") == pytest.approx(0.09)
    assert emitted_scale(model, "model.layers.0.block_sparse_moe.experts.act") == pytest.approx(0.02)


@pytest.mark.parametrize("config", [LLAMA, MIXTRAL], ids=["llama", "mixtral"])
def test_where_readers_agree_the_result_is_that_of_quantizing_in_each(tmp_path: Path, config: Any) -> None:
    source = calibrated(tmp_path, config, {})
    apart = {"layers": [POLICY["layers"][0]]}
    fused = build(model_factory(config), policy=POLICY, source=source)
    with torch.no_grad():
        assert torch.equal(fused(IDS), build(model_factory(config), policy=apart, source=source)(IDS))


def test_layers_constructed_with_the_plan_get_the_same_scales(tmp_path: Path) -> None:
    source = calibrated(tmp_path, LLAMA, {"1.self_attn.k_proj": 0.07})
    model = FAMILIES["llama"](LLAMA, quant_config=PlanConfig(resolve(load_policy(POLICY), Inventory.open(source))))
    for _ in range(2):
        load_weights(model, source)
        norm: Any = model.get_submodule("model.layers.1.input_layernorm")
        assert isinstance(norm.scheme.output, Quantization)
        assert norm.scheme.output.scale == pytest.approx(0.07)
    with torch.no_grad():
        assert torch.equal(model(IDS), build(model_factory(LLAMA), policy=POLICY, source=source)(IDS))


def test_a_reader_without_a_stored_scale_is_named(tmp_path: Path) -> None:
    policy = {"layers": [{**POLICY["layers"][0], "input": {**STATIC, "scheme": "static"}}, POLICY["layers"][1]]}
    with pytest.raises(BuildError) as raised:
        build(model_factory(LLAMA), policy=policy, source=checkpoint(tmp_path, LLAMA))
    message = str(raised.value)
    assert "'model.layers.{0..1}.mlp.act_fn' emits float8_e4m3fn per tensor static without a scale" in message
    assert "'model.layers.{0..1}.mlp.down_proj', which reads it, is stored without input_scale" in message


def test_a_scale_that_is_not_positive_is_named(tmp_path: Path) -> None:
    source = calibrated(tmp_path, LLAMA, {"0.mlp.down_proj": -1.0})
    with pytest.raises(PolicyQuantError, match=r"'model\.layers\.0\.mlp\.down_proj\.input_scale' .*holds -1\.0"):
        build(model_factory(LLAMA), policy=POLICY, source=source)
