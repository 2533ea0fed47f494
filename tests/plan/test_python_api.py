"""What is handed out to Python: values that nobody can change, and errors for what is no policy, model or layer."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from policyquant import Inventory, Policy, PolicyQuantError, load_policy, read_plan, resolve
from policyquant.plan.write import write_plan
from policyquant.policy.policy import Fields
from tests.plan.models import llama, mixtral, mixtral_modules, plan

POLICY = {
    "extends": "fp8-kv",
    "default": {"method": "fp8_block", "weight": {"block": [128, 128]}},
    "layers": [
        {"match": ["*.mlp", "re:.*_proj"], "kind": "linear", "input": {"group": 64}},
        {"kind": "norm", "output": "bf16"},
    ],
    "groups": [["*.up_proj", "*.gate_proj"]],
    "expect": {"layers": {"*.self_attn": {"kv_cache": {"dtype": "fp8"}}}, "bits_per_weight": "<= 16"},
}


def inside(value: Any) -> Iterator[Any]:
    """The public values that a value is made of, itself included."""
    yield value
    children: list[Any] = []
    if dataclasses.is_dataclass(value):
        children = [getattr(value, field.name) for field in dataclasses.fields(value) if field.name[0] != "_"]
    elif isinstance(value, tuple):
        children = list(value)
    elif isinstance(value, Mapping):
        children = list(value.values())
    for child in children:
        yield from inside(child)


@pytest.mark.parametrize(
    "value",
    [
        load_policy(POLICY),
        plan(llama(), **POLICY),
        plan(mixtral_modules(), **POLICY),
        plan(llama(), **POLICY)["model.layers.0.mlp.down_proj"],
        plan(llama(), **POLICY)["model.layers.0.self_attn"],
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_cannot_be_changed(value: Any) -> None:
    for each in inside(value):
        assert not isinstance(each, (list, dict, set, bytearray)), each
        if dataclasses.is_dataclass(each):
            field = dataclasses.fields(each)[0].name
            with pytest.raises((dataclasses.FrozenInstanceError, AttributeError)):
                setattr(each, field, None)


def test_written_fields_are_a_mapping_and_a_value() -> None:
    fields = Fields({"group": 64, "granularity": "group"})
    assert fields == {"granularity": "group", "group": 64}
    assert hash(fields) == hash(Fields({"granularity": "group", "group": 64}))
    assert str(fields) == "{group: 64, granularity: group}"
    assert pickle.loads(pickle.dumps(fields)) == fields


def test_a_policy_is_a_value() -> None:
    policy = load_policy(POLICY)
    assert policy == load_policy(POLICY)
    assert hash(policy) == hash(load_policy(POLICY))
    assert policy != load_policy({**POLICY, "layers": []})


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda policy: pickle.loads(pickle.dumps(policy))])
def test_a_copy_of_a_policy_decides_the_same(copied: Callable[[Policy], Policy]) -> None:
    policy = load_policy({"layers": {"*.1.*": "fp8", "*.{0..1}.mlp.*1": "none", "model*.0.[a-m]*": "int8"}})
    assert copied(policy) == policy
    assert [layer.scheme for layer in resolve(copied(policy), mixtral())] == [
        layer.scheme for layer in resolve(policy, mixtral())
    ]


@pytest.mark.parametrize("policy", [{}, "fp8-dynamic", None])
def test_resolving_what_is_no_policy(policy: Any) -> None:
    with pytest.raises(PolicyQuantError, match=f"takes a Policy .see load_policy., not {type(policy).__name__}"):
        resolve(policy, llama())


@pytest.mark.parametrize("model", [{}, "path/to/model", None])
def test_resolving_on_what_is_no_inventory(model: Any) -> None:
    with pytest.raises(PolicyQuantError, match=f"takes an Inventory .see Inventory.open., not {type(model).__name__}"):
        resolve(load_policy({}), model)


def test_a_plan_goes_through_its_layers_in_the_order_of_the_inventory() -> None:
    model = mixtral()
    resolved = plan(model, {"*": "fp8"})
    names = [layer.name(indices) for layer in model.sets for indices in layer.indices]
    assert [layer.name for layer in resolved] == [layer.name for layer in resolved.layers()] == names
    assert len(resolved) == len(model) == len(names)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.layers.0.mlp.down_prj", "did you mean 'model.layers.0.mlp.down_proj'?"),
        ("model.layers.0.mlp", "is no layer but a module with 4 layers inside"),
        ("model.layers.9.mlp.down_proj", "no layer is named 'model.layers.9.mlp.down_proj'"),
        ("model.layers.#.mlp.down_proj", "no layer is named"),
        ("", "no layer is named ''"),
        (".".join("a" * 1000), "no layer is named"),
    ],
)
def test_a_name_that_no_layer_has(name: str, message: str) -> None:
    resolved = plan(llama(), {"*": "fp8"})
    assert name not in resolved
    with pytest.raises(KeyError) as caught:
        resolved[name]
    assert message in caught.value.args[0]


def test_a_file_whose_name_is_no_text_is_named_as_well_as_it_can_be(tmp_path: Any) -> None:
    source = "policy-\udcff.yaml"  # How Python spells the byte 0xff in a name.
    policy: Policy = dataclasses.replace(load_policy({"layers": {"*": "fp8"}}), source=source)
    write_plan(resolve(policy, llama()), tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json").policy.source == "policy-?.yaml"


def test_an_inventory_of_nothing_is_a_plan_of_nothing() -> None:
    resolved = resolve(load_policy({"extends": "fp8-dynamic"}), Inventory.from_tensors([]))
    assert (len(resolved), resolved.total.bits_after) == (0, None)
