"""Where a static scale comes from: the policy, else the checkpoint, else an error that names the fix."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from policyquant import build
from policyquant.errors import BuildError
from policyquant.layers.linear import Linear, QKVParallelLinear
from policyquant.layers.moe import FusedMoE

FIX = r"no input_scale is stored and the policy gives none; write input: \{scheme: static, scale: ...\} or input:"


class Block(nn.Module):
    """A linear, a merged layer and experts."""

    def __init__(self) -> None:
        super().__init__()
        self.o_proj = Linear(8, 8)
        self.qkv_proj = QKVParallelLinear(8, 4, 2, 1)
        self.experts = FusedMoE(2, 1, 8, 4)


def stored(tmp_path: Path, scales: Mapping[str, float]) -> Path:
    """A checkpoint of a block, its parts and experts one by one, with these input scales."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"o_proj": (8, 8), "q_proj": (8, 8), "k_proj": (4, 8), "v_proj": (4, 8)}
    for expert in range(2):
        shapes |= {f"experts.{expert}.{part}": (4, 8) for part in ("gate_proj", "up_proj")}
        shapes[f"experts.{expert}.down_proj"] = (8, 4)
    tensors = {f"{name}.weight": torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    tensors |= {f"{name}.bias": torch.zeros(shapes[name][0]) for name in ("o_proj", "q_proj", "k_proj", "v_proj")}
    tensors |= {f"{name}.input_scale": torch.tensor(scale) for name, scale in scales.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


ALL = {
    "o_proj": 0.1,
    "q_proj": 0.2,
    "k_proj": 0.3,
    "v_proj": 0.25,
    **{f"experts.{e}.{part}": 0.01 * (e + 1) for e in range(2) for part in ("gate_proj", "up_proj", "down_proj")},
}


def built(source: Path, **input: Any) -> Block:
    rules = [{"match": "*", "method": "fp8", "input": {"scheme": "static", **input}}]
    return build(Block, policy={"version": 1, "layers": rules}, source=source)


def input_scales(model: Block) -> dict[str, list[Any]]:
    state = model.state_dict()
    return {name.removesuffix(".input_scale"): state[name].tolist() for name in state if "input_scale" in name}


def test_the_checkpoints_scales_are_taken_and_the_parts_of_a_layer_share_the_largest(tmp_path: Path) -> None:
    found = input_scales(built(stored(tmp_path, ALL)))
    as_float32 = {value: float(torch.tensor(value)) for value in (0.01, 0.02, 0.1, 0.3)}
    assert found == {
        "o_proj": [as_float32[0.1]],
        "qkv_proj": [as_float32[0.3]] * 3,
        "experts.gate_up_proj": [[as_float32[0.01]] * 2, [as_float32[0.02]] * 2],
        "experts.down_proj": [[as_float32[0.01]], [as_float32[0.02]]],
    }


@pytest.mark.parametrize("scales", [{}, ALL], ids=["none stored", "stored"])
def test_the_policys_scale_goes_before_what_is_stored(tmp_path: Path, scales: Mapping[str, float]) -> None:
    found = input_scales(built(stored(tmp_path, scales), scale=0.5))
    assert {value for each in found.values() for value in torch.tensor(each).flatten().tolist()} == {0.5}


@pytest.mark.parametrize("absent", ["o_proj", "k_proj", "experts.1.up_proj", "experts.0.down_proj"])
def test_one_scale_that_is_nowhere_is_an_error_that_names_layer_part_and_fix(tmp_path: Path, absent: str) -> None:
    scales = {name: scale for name, scale in ALL.items() if name != absent}
    with pytest.raises(BuildError, match=FIX) as refused:
        built(stored(tmp_path, scales))
    message = str(refused.value)
    assert message.count("no input_scale is stored") == 1
    layer = {"o_proj": "o_proj", "k_proj": "qkv_proj, k_proj"}.get(absent)
    parts = absent.split(".")
    assert (layer or f"expert {parts[1]}, {parts[2]}") in message


def test_nothing_is_loaded_when_a_scale_is_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from policyquant.methods.fp8 import Fp8

    def load(*_: object) -> None:
        raise AssertionError("a layer was loaded")

    monkeypatch.setattr(Fp8, "load", load)
    with pytest.raises(BuildError, match=FIX):
        built(stored(tmp_path, {name: scale for name, scale in ALL.items() if name != "experts.1.down_proj"}))


def test_a_built_layer_computes_what_its_reference_says(tmp_path: Path) -> None:
    model = built(stored(tmp_path, ALL))
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
    for layer in (model.o_proj, model.qkv_proj):
        with torch.no_grad():
            y = layer(x)
        torch.testing.assert_close(y.double(), layer.quant_method.reference(layer, x), rtol=1e-5, atol=1e-5)
