"""Models built of lists of tensors, on the meta device: what a real model will take, without its weights."""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from policyquant import Inventory, build, load_policy, resolve
from policyquant.building.load_weights import load_weights
from policyquant.errors import BuildError, SourceError
from policyquant.models.families import model_factory
from tests.building.stored_forms import LLAMA, one_by_one, save

MODELS = Path(__file__).parents[1] / "data" / "models"
REAL = ["Mixtral-8x7B-v0.1", "Meta-Llama-3-8B", "Meta-Llama-3-70B", "SmolLM2-135M", "Qwen3-30B-A3B"]
POLICIES: dict[str, Any] = {
    "none": {"version": 1},
    "fp8": "fp8-dynamic",
    "int8_weight_only": "int8-weight-only",
    "experts alone": {"layers": {"decoder.*.moe": "fp8", "*.o_proj": "int8_weight_only"}},
}
SECONDS = 20
MIB = 100
"""Of memory more than before; the models have 0.3 to 140 GB."""


def state_bytes(model: nn.Module) -> int:
    """Of what the model holds, tied tensors once."""
    return sum({id(tensor): tensor.nbytes for tensor in model.state_dict(keep_vars=True).values()}.values())


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", REAL)
def test_a_real_model_has_the_bytes_of_its_plan(name: str, policy: str) -> None:
    source = MODELS / f"{name}.json.gz"
    inventory = Inventory.open(source)
    plan = resolve(load_policy(POLICIES[policy]), inventory)
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    model = build(model_factory(inventory.config), policy=POLICIES[policy], source=source, device="meta")
    assert time.perf_counter() - start < SECONDS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MIB * 1024
    assert state_bytes(model) == plan.total.bytes_after
    assert all(parameter.is_meta for parameter in model.state_dict().values())


def test_a_model_on_meta_is_the_model_of_the_weights_without_values(tmp_path: Path) -> None:
    source = save(tmp_path / "weights", one_by_one(LLAMA), LLAMA)
    real = build(model_factory(LLAMA), policy="fp8-dynamic", source=source).state_dict()
    Inventory.open(source).save(tmp_path / "list.json")
    sources = (source, Inventory.open(source), tmp_path / "list.json")
    for each in sources:
        model = build(model_factory(LLAMA), policy="fp8-dynamic", source=each, device="meta")
        on_meta = model.state_dict()
        assert list(on_meta) == list(real)
        for name, tensor in on_meta.items():
            assert (tensor.shape, tensor.dtype) == (real[name].shape, real[name].dtype), name
            assert tensor.is_meta, name


@pytest.mark.parametrize("form", ["saved list", "inventory"])
def test_a_list_without_values_is_refused_on_a_device_that_has_values(tmp_path: Path, form: str) -> None:
    inventory = Inventory.open(save(tmp_path / "weights", one_by_one(LLAMA), LLAMA))
    inventory.save(tmp_path / "list.json.gz")
    source = inventory if form == "inventory" else tmp_path / "list.json.gz"
    with pytest.raises(SourceError, match=r"lists tensors without their values, .* on device='meta' alone"):
        build(model_factory(LLAMA), policy=None, source=source)
    model = model_factory(LLAMA)()
    with pytest.raises(SourceError, match="lists tensors without their values"):
        load_weights(model, source)


def test_a_list_that_does_not_fit_the_model_is_told_as_files_are(tmp_path: Path) -> None:
    state = one_by_one(LLAMA)
    del state["model.norm.weight"]
    inventory = Inventory.open(save(tmp_path, state, LLAMA))
    with pytest.raises(BuildError, match=r"'model\.norm\.weight' is in the model, but the source has no such tensor"):
        build(model_factory(LLAMA), policy=None, source=inventory, device="meta")


def test_an_index_without_its_files_lists_no_shapes(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"metadata": {}, "weight_map": {"a.weight": "model-00001-of-00001.safetensors"}}')
    inventory = Inventory.open(index)
    with pytest.raises(SourceError, match=r"the shape or the dtype of 'a\.weight' is not known"):
        build(lambda: nn.ModuleDict({"a": nn.Linear(4, 4)}), policy=None, source=inventory, device="meta")


def test_an_index_beside_its_files_has_values(tmp_path: Path) -> None:
    save_file({"a.weight": torch.eye(4)}, tmp_path / "model-00001-of-00001.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"metadata": {}, "weight_map": {"a.weight": "model-00001-of-00001.safetensors"}}')
    model = build(lambda: nn.ModuleDict({"a": nn.Linear(4, 4, bias=False)}), policy=None, source=index)
    assert torch.equal(model.state_dict()["a.weight"], torch.eye(4))
