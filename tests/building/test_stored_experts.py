"""A stranger's module that holds all experts in one 3-D parameter, as transformers v5 has them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from policyquant import build
from policyquant.errors import BuildError
from policyquant.layers.moe import FusedMoE
from tests.building.stored_forms import MIXTRAL, State, experts_as_3d, one_by_one, renamed, same_state, save

PARTS = ("w1", "w3", "w2")


class Experts(nn.Module):
    """gate_up [E, 2I, H] and down [E, H, I]."""

    def __init__(self, inner: int, *, transposed: bool = False) -> None:
        super().__init__()
        shapes = ((4, 2 * inner, 32), (4, 32, inner))
        first, second = (torch.empty(shape).mT if transposed else torch.empty(shape) for shape in shapes)
        self.gate_up_proj = nn.Parameter(first)
        self.down_proj = nn.Parameter(second)
        if transposed:
            self.is_transposed = True


def blocks(inner: int = 48, *, transposed: bool = False) -> Callable[[], nn.Module]:
    """A factory of two blocks with a router and experts each, named as transformers' Mixtral names them."""

    def factory() -> nn.Module:
        return nn.ModuleDict(
            {
                "model": nn.ModuleDict(
                    {
                        "layers": nn.ModuleList(
                            nn.ModuleDict(
                                {
                                    "mlp": nn.ModuleDict(
                                        {
                                            "gate": nn.Linear(32, 4, bias=False),
                                            "experts": Experts(inner, transposed=transposed),
                                        }
                                    )
                                }
                            )
                            for _ in range(2)
                        )
                    }
                )
            }
        )

    return factory


def sparse_only(state: State) -> State:
    return {name: tensor for name, tensor in state.items() if "block_sparse_moe" in name}


@pytest.fixture
def one_expert_a_tensor() -> State:
    return sparse_only(one_by_one(MIXTRAL))


@pytest.mark.parametrize("names", ["checkpoint", "module tree"])
def test_the_same_form_on_both_sides_is_taken_as_it_is(tmp_path: Path, one_expert_a_tensor: State, names: str) -> None:
    state = experts_as_3d(one_expert_a_tensor, PARTS)
    in_tree = renamed(state, ("block_sparse_moe", "mlp"))
    source = save(tmp_path, state if names == "checkpoint" else in_tree, MIXTRAL)
    model = build(blocks(), policy=None, source=source)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, in_tree[name]), name


@pytest.mark.parametrize("transposed", [False, True], ids=["[E, out, in]", "[E, in, out]"])
@pytest.mark.parametrize("inner", [48, 16], ids=["", "square"])
def test_experts_one_by_one_are_put_together(tmp_path: Path, inner: int, transposed: bool) -> None:
    state = sparse_only(one_by_one({**MIXTRAL, "intermediate_size": inner}))
    model = build(blocks(inner, transposed=transposed), policy=None, source=save(tmp_path, state, MIXTRAL))
    expected = renamed(experts_as_3d(state, PARTS, transposed=transposed), ("block_sparse_moe", "mlp"))
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
        assert tensor.is_contiguous()


def test_an_expert_that_is_missing_is_named(tmp_path: Path, one_expert_a_tensor: State) -> None:
    state = {name: each for name, each in one_expert_a_tensor.items() if "1.block_sparse_moe.experts.2." not in name}
    message = (
        r"'model\.layers\.1\.mlp\.experts\.down_proj' is stored expert by expert, and expert 2 is missing: the next is"
        r" 'model\.layers\.1\.block_sparse_moe\.experts\.3\.w2\.weight'"
    )
    with pytest.raises(BuildError, match=message):
        build(blocks(), policy=None, source=save(tmp_path, state, MIXTRAL))


def test_experts_too_many_are_a_wrong_shape(tmp_path: Path, one_expert_a_tensor: State) -> None:
    state = dict(one_expert_a_tensor)
    for part in PARTS:
        name = f"model.layers.0.block_sparse_moe.experts.{{}}.{part}.weight"
        state[name.format(4)] = state[name.format(0)]
    with pytest.raises(BuildError, match=r"has shape \[5, 96, 32\]; the model has \[4, 96, 32\]"):
        build(blocks(), policy=None, source=save(tmp_path, state, MIXTRAL))


def test_a_method_for_a_class_that_takes_none_is_refused(tmp_path: Path, one_expert_a_tensor: State) -> None:
    with pytest.raises(BuildError, match=r"mlp\.experts' gets fp8 .* but its class Experts takes no method"):
        build(blocks(), policy={"layers": {"*.moe": "fp8"}}, source=save(tmp_path, one_expert_a_tensor, MIXTRAL))


def test_alternate_rows_are_not_put_together(tmp_path: Path, one_expert_a_tensor: State) -> None:
    class Alternate(Experts):
        is_concatenated = False

    def factory() -> nn.Module:
        root = blocks()()
        for block in root.get_submodule("model.layers").children():
            block.get_submodule("mlp").experts = Alternate(48)
        return root

    with pytest.raises(BuildError, match="holds gate and up in alternate rows, and the source stores them one by one"):
        build(factory, policy=None, source=save(tmp_path, one_expert_a_tensor, MIXTRAL))


@pytest.mark.slow
@pytest.mark.parametrize("form", ["one by one", "3-D", "3-D, named as the tree"])
def test_transformers_own_mixtral_is_built_from_every_form(tmp_path: Path, form: str) -> None:
    transformers = pytest.importorskip("transformers")
    state = one_by_one(MIXTRAL)
    as_3d = experts_as_3d(state, PARTS)
    in_tree = renamed(as_3d, ("block_sparse_moe", "mlp"))
    source = save(tmp_path, {"one by one": state, "3-D": as_3d}.get(form, in_tree), MIXTRAL)

    def factory() -> Any:
        return transformers.MixtralForCausalLM(transformers.MixtralConfig(**MIXTRAL))

    model = build(factory, policy=None, source=source)
    expected = factory()
    expected.load_state_dict(in_tree)
    for parameter in expected.parameters():  # Not `.to`, which rounds the rotary table too.
        parameter.data = parameter.data.to(torch.bfloat16)
    ids = torch.arange(12).reshape(2, 6)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, in_tree[name]), name
    with torch.no_grad():
        assert torch.equal(model.eval()(ids).logits, expected.eval()(ids).logits)


class OurBlock(nn.Module):
    """Our experts under the names of transformers' tree, with parts that Mixtral's checkpoints call otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(32, 4, bias=False)
        self.experts = FusedMoE(4, 2, 32, 48)


def ours() -> nn.Module:
    layers = nn.ModuleList([nn.ModuleDict({"mlp": OurBlock()}) for _ in range(2)])
    return nn.ModuleDict({"model": nn.ModuleDict({"layers": layers})})


@pytest.mark.parametrize("method", ["none", "fp8", "int8_weight_only"])
def test_experts_of_ours_are_found_by_the_name_of_their_module(
    tmp_path: Path, one_expert_a_tensor: State, method: str
) -> None:
    as_3d = experts_as_3d(one_expert_a_tensor, PARTS)
    forms = {"one by one": one_expert_a_tensor, "3-D": as_3d, "tree": renamed(as_3d, ("block_sparse_moe", "mlp"))}
    policy = {"layers": {"decoder.*.moe": method}}
    models = [build(ours, policy=policy, source=save(tmp_path / name, each, MIXTRAL)) for name, each in forms.items()]
    for model in models[1:]:
        same_state(models[0], model)
    if method == "none":
        gate_up = models[0].state_dict()["model.layers.1.mlp.experts.gate_up_proj.weight"]
        assert torch.equal(gate_up, as_3d["model.layers.1.block_sparse_moe.experts.gate_up_proj"])
