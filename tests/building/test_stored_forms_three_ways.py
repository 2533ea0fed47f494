"""Layers that were constructed with a plan take every stored form that `build` takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from policyquant import Inventory, PlanConfig, build, load_policy, load_weights, resolve
from policyquant.models.families import FAMILIES, model_factory
from tests.building.stored_forms import LLAMA, as_fp8, fuse, one_by_one, same_state, save
from tests.building.test_stored_forms import FORMS, POLICIES, QKV


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("form", FORMS)
def test_both_ways_take_a_form(tmp_path: Path, form: str, policy: str) -> None:
    config, change = FORMS[form]
    source = save(tmp_path, change(one_by_one(config)), config)
    asked = POLICIES[policy] or {"version": 1}
    plan = resolve(load_policy(asked), Inventory.open(source))
    model = FAMILIES[config["model_type"]](config, quant_config=PlanConfig(plan), device="meta")
    load_weights(model, source)
    same_state(build(model_factory(config), policy=asked, source=source), model)


@pytest.mark.parametrize("granularity", ["channel", "tensor"])
def test_both_ways_run_what_is_left_as_stored(tmp_path: Path, granularity: str) -> None:
    state = as_fp8(one_by_one(LLAMA), (*QKV, "o_proj", "gate_proj", "up_proj", "down_proj"), granularity)
    if granularity == "channel":
        state = fuse(state, QKV, "qkv_proj", ("weight", "weight_scale"))
    source = save(tmp_path, state, LLAMA)
    plan = resolve(load_policy({"version": 1}), Inventory.open(source))
    model = FAMILIES["llama"](LLAMA, quant_config=PlanConfig(plan), device="meta")
    load_weights(model, source)
    same_state(build(model_factory(LLAMA), policy=None, source=source), model)
    assert "fp8 (weight float8_e4m3fn" in repr(model.get_submodule("model.layers.0.self_attn.qkv_proj"))
