"""Trees of transformers' own classes, beside the checkpoints that transformers saves of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from policyquant import Inventory, Plan, load_policy, resolve
from policyquant.inventory.kinds import Kind
from policyquant.inventory.layers import LayerSet
from tests.inventory.models import members
from tests.inventory.transformers_models import MODELS, OF_FAMILIES, build

pytestmark = pytest.mark.slow
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

EXPERT_MODELS = [
    "Mixtral",
    "Qwen2-MoE",
    "Qwen3-MoE",
    "DeepSeek-V3",
    "gpt-oss",
    "GraniteMoE",
    "GLM-4.5",
    "ERNIE-4.5",
    "OLMoE",
    "Qwen3-Next",
]
POLICY = {"version": 1, "default": "int8", "layers": {"decoder.*.moe": "fp8", "*.qkv_proj": "none"}}


@cache
def tree(name: str) -> Any:
    """The model on the meta device, which holds no weights."""
    with torch.device("meta"):
        return build(name)


@cache
def from_tree(name: str) -> Inventory:
    return Inventory.open(tree(name))


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Name → inventory of the checkpoint that `save_pretrained` writes."""

    @cache
    def save(name: str) -> Inventory:
        directory: Path = tmp_path_factory.mktemp("model")
        build(name).save_pretrained(directory)
        return Inventory.open(directory)

    return save


def kind_by_class(name: str, module: Any, model: Any) -> Kind | None:
    """What a module is, by its class and by what the model itself says of it; None if it is no layer, or not sure."""
    nn = torch.nn
    class_name = type(module).__name__
    if module is model.get_output_embeddings() or name in ("classifier", "cls.seq_relationship"):
        return "head"
    if isinstance(module, nn.Embedding):
        return "embedding"
    if class_name.endswith(("Router", "Gate")) or name.endswith(
        (".gate", ".router", ".shared_expert_gate", ".router.layer")
    ):
        return "router"
    if is_linear(module):
        return "linear"
    if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        return "conv"
    if class_name.endswith(("Norm", "RMSNormGated")):
        return "norm"
    if class_name.endswith("Experts"):
        return "moe"
    if class_name.endswith("Attention") and any(map(is_linear, module.children())):
        return "attention"  # Without projections of its own it only wraps one.
    if isinstance(module, (nn.SiLU, nn.GELU, nn.ReLU, nn.Tanh)) or class_name.endswith(("Activation", "GELUTanh")):
        return "activation"
    return None


def is_linear(module: Any) -> bool:
    return isinstance(module, torch.nn.Linear) or type(module).__name__ == "Conv1D"


def layers_by_name(inventory: Inventory) -> Iterator[tuple[str, LayerSet]]:
    """Each layer by the first of its own names in the module namespace."""
    for layer in inventory.sets:
        for indices in layer.indices:
            yield layer.names["module"][0].fill(indices), layer


@pytest.mark.parametrize("name", MODELS)
def test_every_layer_has_the_kind_of_its_class(name: str) -> None:
    model = tree(name)
    kinds = {module: layer.kind for module, layer in layers_by_name(from_tree(name))}
    expected = {
        path: kind_by_class(path, module, model) for path, module in model.named_modules(remove_duplicate=False)
    }
    known = {path: kind for path, kind in expected.items() if kind is not None}
    assert len(known) > 10
    assert {path: kinds.get(path) for path in known} == known


@pytest.mark.parametrize("name", MODELS)
def test_every_layer_has_a_name_of_the_tree(name: str) -> None:
    paths = {path for path, _ in tree(name).named_modules(remove_duplicate=False)}
    assert {path for path, _ in layers_by_name(from_tree(name))} <= paths


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_belongs_to_one_layer(name: str) -> None:
    owned = [
        f"{path}.{tensor.suffix}".lstrip(".")  # The root may own parameters too.
        for path, layer in layers_by_name(from_tree(name))
        for tensor in layer.tensors
    ]
    tied = {f"{path}.weight" for path, layer in layers_by_name(from_tree(name)) if layer.tied_to}
    stored = {path for path, _ in tree(name).named_parameters(remove_duplicate=False)}
    assert len(owned) == len(set(owned))
    assert stored - tied <= set(owned)


def parts_of(inventory: Inventory) -> Counter[tuple[object, ...]]:
    """What a policy can tell of each part, whatever its checkpoint calls it."""
    return Counter(
        (
            tuple(form.fill(indices) for form in part.names["canonical"]),
            layer.kind,
            part.shape,
            part.group,
            layer.tied_to is not None,
        )
        for layer in inventory.sets
        for part in layer.parts
        for indices in members(part, layer)
    )


@pytest.mark.parametrize("name", OF_FAMILIES)
def test_a_tree_and_its_checkpoint_have_the_same_parts(name: str, saved: Any) -> None:
    of_tree, of_checkpoint = parts_of(from_tree(name)), parts_of(saved(name))
    assert of_tree - of_checkpoint == of_checkpoint - of_tree == Counter()


@pytest.mark.parametrize("name", OF_FAMILIES)
def test_a_family_knows_all_that_transformers_writes(name: str, saved: Any) -> None:
    assert from_tree(name).findings == saved(name).findings == ()


@pytest.mark.parametrize("name", OF_FAMILIES)
def test_one_policy_decides_alike_on_a_tree_and_on_its_checkpoint(name: str, saved: Any) -> None:
    policy = load_policy(POLICY)
    stored, built = (resolve(policy, inventory) for inventory in (saved(name), from_tree(name)))
    shared = [layer for layer in stored.layers() if layer.name in built]
    assert shared
    for layer in shared:
        assert built[layer.name].scheme == layer.scheme, layer.name


@pytest.mark.parametrize("source", ["tree", "checkpoint"])
@pytest.mark.parametrize("name", EXPERT_MODELS)
def test_experts_are_quantized_and_routers_and_qkv_are_left_alone(name: str, source: str, saved: Any) -> None:
    inventory = from_tree(name) if source == "tree" else saved(name)
    plan: Plan = resolve(load_policy(POLICY), inventory)
    methods: dict[str, set[str]] = {}
    for layer in plan.layers():
        methods.setdefault(layer.kind, set()).add(layer.method)
    assert methods["moe"] == {"fp8"}
    assert methods["router"] == {"none"}
    assert methods["head"] == methods["embedding"] == {"none"}
    attention = {layer.name: layer.method for layer in plan.layers() if ".self_attn." in layer.name}
    assert {method for path, method in attention.items() if path.endswith("o_proj")} == {"int8"}
    assert {method for path, method in attention.items() if not path.endswith("o_proj")} == {"none"}
    assert not plan.errors()
