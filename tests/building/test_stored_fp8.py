"""Checkpoints that are stored in FP8 already, with scales as compressed-tensors and vLLM write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from policyquant import Inventory, build, load_policy, resolve
from policyquant.errors import BuildError
from policyquant.layers.base import WeightLayer
from policyquant.models.families import model_factory
from tests.building.stored_forms import (
    LLAMA,
    MIXTRAL,
    State,
    as_fp8,
    experts_as_3d,
    fuse,
    one_by_one,
    same_state,
    save,
)

LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
QKV = LINEARS[:3]
GATE_UP = ("gate_proj", "up_proj")
EXPERTS = ("w1", "w3", "w2")
IDS = torch.arange(12).reshape(2, 6)
PER_TENSOR = {"method": "fp8", "weight": {"granularity": "tensor"}}


def layer(model: nn.Module, name: str) -> WeightLayer:
    found = model.get_submodule(name)
    assert isinstance(found, WeightLayer)
    return found


@pytest.mark.parametrize("granularity", ["channel", "tensor"])
def test_codes_and_scales_are_kept_to_the_bit(tmp_path: Path, granularity: str) -> None:
    state = as_fp8(one_by_one(LLAMA), LINEARS, granularity)
    policy = "fp8" if granularity == "channel" else PER_TENSOR
    model = build(model_factory(LLAMA), policy={"layers": {"*": policy}}, source=save(tmp_path, state, LLAMA))
    held = model.state_dict()
    start = "model.layers.1.self_attn"
    codes = torch.cat([state[f"{start}.{part}.weight"].view(torch.uint8) for part in QKV])
    assert torch.equal(held[f"{start}.qkv_proj.weight"].view(torch.uint8), codes)
    scales = torch.cat([state[f"{start}.{part}.weight_scale"].reshape(-1) for part in QKV])
    assert torch.equal(held[f"{start}.qkv_proj.weight_scale"].reshape(-1), scales)


@pytest.mark.parametrize("granularity", ["channel", "tensor"])
@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
def test_what_is_left_as_stored_runs_by_the_method_that_stores_the_same(
    tmp_path: Path, granularity: str, static: bool
) -> None:
    state = as_fp8(one_by_one(LLAMA), LINEARS, granularity, static=static)
    source = save(tmp_path, state, LLAMA)
    left = build(model_factory(LLAMA), policy=None, source=source)
    rule: dict[str, Any] = {"method": "fp8", "weight": {"granularity": granularity}}
    if static:
        rule["input"] = {"granularity": "tensor", "scheme": "static"}
    asked = build(model_factory(LLAMA), policy={"layers": {"*": rule, "lm_head": "none"}}, source=source)
    same_state(left, asked)
    assert layer(left, "model.layers.0.mlp.down_proj").scheme == layer(asked, "model.layers.0.mlp.down_proj").scheme
    assert layer(left, "lm_head").scheme.method == "none"
    with torch.no_grad():
        assert torch.equal(left(IDS), asked(IDS))


@pytest.mark.parametrize("granularity", ["channel", "tensor"])
@pytest.mark.parametrize("static", [False, True], ids=["dynamic", "static"])
def test_bytes_of_what_is_left_as_stored_are_those_that_are_stored(
    tmp_path: Path, granularity: str, static: bool
) -> None:
    state = as_fp8(one_by_one(LLAMA), LINEARS, granularity, static=static)
    source = save(tmp_path, state, LLAMA)
    model = build(model_factory(LLAMA), policy=None, source=source)
    held = sum(tensor.nbytes for tensor in model.state_dict().values())
    assert held == sum(tensor.nbytes for tensor in state.values())
    assert held == resolve(load_policy({"version": 1}), Inventory.open(source)).total.bytes_after


def test_a_plain_linear_that_is_stored_as_fp8_is_run_so() -> None:
    torch.manual_seed(0)
    state = as_fp8({"a.weight": torch.randn(24, 16), "a.bias": torch.randn(24)}, ("",), "channel")
    assert state["a.weight"].dtype == torch.float32  # Not of a layer inside another.
    state = as_fp8({"x.a.weight": torch.randn(24, 16), "x.a.bias": torch.randn(24)}, ("a",), "channel")
    model = build(lambda: nn.ModuleDict({"x": nn.ModuleDict({"a": nn.Linear(16, 24)})}), policy=None, source=state)
    assert str(layer(model, "x.a").scheme).startswith("fp8 (weight float8_e4m3fn per channel")
    assert torch.equal(
        model.state_dict()["x.a.weight"].view(torch.uint8), state["x.a.weight"].contiguous().view(torch.uint8)
    )


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_a_scale_for_the_whole_tensor_may_have_any_shape_of_one_element(tmp_path: Path, shape: tuple[int, ...]) -> None:
    state = as_fp8(one_by_one(LLAMA), LINEARS, "tensor", static=True)
    other = {name: each.reshape(shape) if name.endswith("_scale") else each for name, each in state.items()}
    policy = {"layers": {"*": {**PER_TENSOR, "input": {"granularity": "tensor", "scheme": "static"}}}}
    one = build(model_factory(LLAMA), policy=policy, source=save(tmp_path / "one", state, LLAMA))
    same_state(one, build(model_factory(LLAMA), policy=policy, source=save(tmp_path / "other", other, LLAMA)))


def test_the_largest_input_scale_of_a_layers_parts_is_the_layers(tmp_path: Path) -> None:
    state = as_fp8(one_by_one(LLAMA), LINEARS, "tensor", static=True)
    start = "model.layers.0.self_attn"
    for part, scale in zip(QKV, (0.5, 2.0, 1.0), strict=True):
        state[f"{start}.{part}.input_scale"] = torch.tensor(scale)
    model = build(model_factory(LLAMA), policy=None, source=save(tmp_path, state, LLAMA))
    assert model.state_dict()[f"{start}.qkv_proj.input_scale"].tolist() == [2.0, 2.0, 2.0]


def fused_scales(state: State, parts: tuple[str, ...], fused: str, how: str) -> State:
    """Fuse layers with their scales: one a row, one a part, or, where all parts have the same, one in all."""
    state = dict(state)
    scales = [name for name in state if any(name.endswith(f".{part}.weight_scale") for part in parts)]
    if how == "one a part":
        state.update({name: state[name].reshape(1) for name in scales})
    if how != "one in all":
        return fuse(state, parts, fused, ("weight", "weight_scale"))
    result = fuse(state, parts, fused, ("weight",))
    for name in scales:
        start, _, _ = name.removesuffix(".weight_scale").rpartition(".")
        result[f"{start}.{fused}.weight_scale"] = result.pop(name)
    return result


@pytest.mark.parametrize("how", ["one a row", "one a part", "one in all"])
def test_scales_of_fused_layers_go_with_their_parts(tmp_path: Path, how: str) -> None:
    state = as_fp8(one_by_one(LLAMA), LINEARS, "channel" if how == "one a row" else "tensor")
    if how == "one in all":
        state.update({name: torch.tensor(0.01) for name in state if name.endswith("weight_scale")})
    fused = fused_scales(fused_scales(state, QKV, "qkv_proj", how), GATE_UP, "gate_up_proj", how)
    assert "model.layers.0.self_attn.qkv_proj.weight_scale" in fused
    assert "model.layers.0.self_attn.q_proj.weight_scale" not in fused
    policy: Any = {"layers": {"*": "fp8" if how == "one a row" else PER_TENSOR, "lm_head": "none"}}
    truth = build(model_factory(LLAMA), policy=policy, source=save(tmp_path / "apart", state, LLAMA))
    same_state(truth, build(model_factory(LLAMA), policy=policy, source=save(tmp_path / "fused", fused, LLAMA)))


def experts_in_fp8(state: State, how: str, *, transposed: bool) -> State:
    """3-D experts in FP8, with the scales of experts that are stored one by one."""
    weights = experts_as_3d({n: t for n, t in state.items() if "_scale" not in n}, EXPERTS, transposed=transposed)
    for start in {name.removesuffix("gate_up_proj") for name in weights if name.endswith("experts.gate_up_proj")}:
        scale = {part: torch.stack([state[f"{start}{e}.{part}.weight_scale"] for e in range(4)]) for part in EXPERTS}
        gate_up = torch.cat([scale["w1"], scale["w3"]], dim=1) if how == "one a row" else scale["w1"]
        if how == "one a part":
            gate_up = torch.stack([scale["w1"], scale["w3"]], dim=1)
        for name, each in (("gate_up_proj", gate_up), ("down_proj", scale["w2"])):
            weights[f"{start}{name}_scale"] = each.mT if transposed and how == "one a row" else each
    return weights


@pytest.mark.parametrize("transposed", [False, True], ids=["[E, out, in]", "[E, in, out]"])
@pytest.mark.parametrize("how", ["one a row", "one a part", "one an expert"])
def test_scales_of_experts_in_one_tensor_go_with_their_rows(tmp_path: Path, how: str, transposed: bool) -> None:
    state = as_fp8(one_by_one(MIXTRAL), EXPERTS, "channel" if how == "one a row" else "tensor")
    if how == "one an expert":
        for name in list(state):
            if name.endswith(".w3.weight_scale"):
                state[name] = state[name.replace("w3", "w1")]
    policy: Any = {"layers": {"*.experts": "fp8" if how == "one a row" else PER_TENSOR}}
    truth = build(model_factory(MIXTRAL), policy=policy, source=save(tmp_path / "apart", state, MIXTRAL))
    other = save(tmp_path / "3d", experts_in_fp8(state, how, transposed=transposed), MIXTRAL)
    model = build(model_factory(MIXTRAL), policy=policy, source=other)
    same_state(truth, model)
    if how != "one a part" and not transposed:
        # The whole module counts as stored per channel or per tensor, and runs so without a policy too.
        left = build(model_factory(MIXTRAL), policy=None, source=other)
        assert layer(left, "model.layers.0.block_sparse_moe.experts.down_proj").scheme.method == "fp8"


def test_scales_of_blocks_are_refused_as_they_are_and_under_a_method(tmp_path: Path) -> None:
    state = as_fp8(one_by_one(LLAMA), LINEARS)
    for name in [name for name in state if name.endswith("weight_scale")]:
        del state[name]
        state[f"{name}_inv"] = torch.ones(1, 1)
    wide = dict(state)
    wide["model.layers.0.mlp.down_proj.weight"] = torch.zeros(256, 384).to(torch.float8_e4m3fn)
    wide["model.layers.0.mlp.down_proj.weight_scale_inv"] = torch.ones(2, 3)
    with pytest.raises(
        BuildError, match=r"down_proj' is stored as fp8_block: F8_E4M3, block 128x128 and the plan leaves it so"
    ):
        build(model_factory(LLAMA), policy=None, source=save(tmp_path, wide, LLAMA))


def test_a_scale_that_covers_rows_of_two_parts_is_refused(tmp_path: Path) -> None:
    state = as_fp8(one_by_one(LLAMA), LINEARS)
    fused = fused_scales(state, QKV, "qkv_proj", "one a row")
    name = "model.layers.0.self_attn.qkv_proj.weight_scale"
    fused[name] = torch.ones(5, 1)
    with pytest.raises(
        BuildError, match=r"qkv_proj\.weight_scale' in .* has shape \[5, 1\], in which q_proj, k_proj and"
    ):
        build(model_factory(LLAMA), policy={"layers": {"*": "fp8"}}, source=save(tmp_path, fused, LLAMA))


def test_parts_that_are_stored_in_different_ways_cannot_be_left_in_one_layer(tmp_path: Path) -> None:
    state = as_fp8(one_by_one(LLAMA), ("q_proj", "k_proj"))
    with pytest.raises(BuildError, match=r"qkv_proj' is stored as fp8: F8_E4M3, per channel beside plain floats and"):
        build(model_factory(LLAMA), policy=None, source=save(tmp_path, state, LLAMA))


def test_a_scale_for_each_channel_serves_parts_with_one_scale_too(tmp_path: Path) -> None:
    """q per tensor beside k and v per channel: kept per channel, where every code and scale stays what it was."""
    state = as_fp8(as_fp8(one_by_one(LLAMA), ("q_proj",), "tensor"), LINEARS[1:])
    model = build(model_factory(LLAMA), policy=None, source=save(tmp_path, state, LLAMA))
    start = "model.layers.0.self_attn"
    held = model.state_dict()
    codes = torch.cat([state[f"{start}.{part}.weight"].view(torch.uint8) for part in QKV])
    assert torch.equal(held[f"{start}.qkv_proj.weight"].view(torch.uint8), codes)
    assert set(held[f"{start}.qkv_proj.weight_scale"][:32, 0].tolist()) == {
        float(state[f"{start}.q_proj.weight_scale"])
    }


@pytest.mark.parametrize("shape", [(4,), (4, 1), ()], ids=["[E]", "[E, 1]", "one for all"])
def test_each_expert_takes_its_own_input_scale(tmp_path: Path, shape: tuple[int, ...]) -> None:
    state = experts_in_fp8(as_fp8(one_by_one(MIXTRAL), EXPERTS), "one a row", transposed=False)
    start = "model.layers.0.block_sparse_moe.experts"
    scales = torch.tensor([0.5, 1.0, 1.5, 2.0]) if shape else torch.tensor(0.25)
    for block in range(2):
        for name in ("gate_up_proj", "down_proj"):
            state[f"model.layers.{block}.block_sparse_moe.experts.{name}_input_scale"] = scales.reshape(shape)
    held = build(model_factory(MIXTRAL), policy=None, source=save(tmp_path, state, MIXTRAL)).state_dict()
    expected = scales.expand(4)
    assert torch.equal(held[f"{start}.down_proj.input_scale"], expected[:, None])
    assert torch.equal(held[f"{start}.gate_up_proj.input_scale"], expected[:, None].expand(4, 2))
