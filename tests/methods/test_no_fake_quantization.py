"""For every method and every layer: the bytes are gone, the codes are real, and nothing is kept beside them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from policyquant.building.targets import logical_state, part_names
from policyquant.checkpoint.tensors import MemoryTensor, Slot
from policyquant.layers.base import WeightLayer
from policyquant.layers.embedding import ParallelLMHead, VocabParallelEmbedding
from policyquant.layers.linear import Linear, MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from policyquant.layers.moe import ExpertsLinear, FusedMoE
from policyquant.methods.registry import BUILT_IN, method_for
from policyquant.plan.sizes import scheme_bytes
from policyquant.policy.methods import METHODS
from policyquant.policy.scheme import Scheme

K = 64

LAYERS: dict[str, Callable[[], WeightLayer]] = {
    "linear": lambda: Linear(K, 48, bias=False),
    "row parallel": lambda: RowParallelLinear(K, 48, bias=True),
    "qkv": lambda: QKVParallelLinear(K, 16, 4, 2, bias=True),
    "merged": lambda: MergedColumnParallelLinear(K, {"gate_proj": 40, "up_proj": 40}, bias=False),
    "head": lambda: ParallelLMHead(80, K),
    "experts": lambda: ExpertsLinear(4, K, {"gate_proj": 24, "up_proj": 24}),
    "embedding": lambda: VocabParallelEmbedding(80, K),
}
QUANTIZING = [name for name in BUILT_IN if name != "none"]
FORMS: dict[str, list[dict[str, Any]]] = {
    "fp8": [
        {},
        {"weight": {"granularity": "tensor"}},
        {"input": {"granularity": "tensor"}},
        {"input": {"granularity": "tensor", "scheme": "static", "scale": 0.05}},
        {"weight": {"dtype": "float8_e5m2"}, "input": {"dtype": "float8_e5m2"}},
    ],
    "int8_weight_only": [{}, {"weight": {"granularity": "tensor"}}],
}


def cases() -> Iterator[Any]:
    for method in QUANTIZING:
        for form in FORMS[method]:
            for layer in LAYERS:
                if layer == "embedding" and "embedding" not in METHODS[method].kinds:
                    continue
                yield pytest.param(method, form, layer, id=f"{method} {form or ''} {layer}")


def scheme(method: str, form: dict[str, Any]) -> Scheme:
    spec = METHODS[method]
    weight, input = spec.refine(spec.weight, spec.input, form.get("weight"), form.get("input"))
    return Scheme(method, weight, input)


def quantized(method: str, form: dict[str, Any], kind: str) -> WeightLayer:
    torch.manual_seed(0)
    layer = LAYERS[kind]()
    layer.layer_name = "layer"
    slots = {}
    for name, tensor in logical_state(torch.nn.ModuleDict({"layer": layer})).items():
        part = next(each for each in part_names(layer, "layer") if name.startswith(each.name))
        slots[Slot(name.rpartition(".")[2], part.part, part.expert)] = MemoryTensor(name, tensor.clone())
    found = method_for(scheme(method, form))
    assert list(found.check(layer, slots)) == []
    layer.take_method(found, torch.device("cpu"))
    found.load(layer, slots)
    found.process_weights_after_loading(layer)
    return layer


def run(layer: WeightLayer) -> torch.Tensor:
    with torch.no_grad():
        if isinstance(layer, VocabParallelEmbedding):
            return layer(torch.arange(5))  # type: ignore[return-value]
        if isinstance(layer, ExpertsLinear):
            return layer(torch.randn(6, K), [3, 0, 2, 1])  # type: ignore[return-value]
        return layer(torch.randn(3, K))  # type: ignore[no-any-return]


@pytest.mark.parametrize(("method", "form", "kind"), list(cases()))
def test_the_bytes_of_the_layer_are_those_of_the_plan(method: str, form: dict[str, Any], kind: str) -> None:
    layer = quantized(method, form, kind)
    leading = () if layer.num_experts is None else (layer.num_experts,)
    planned = sum(scheme_bytes(layer.scheme, (*leading, rows, K)) for rows in layer.parts.values())
    bias = 0 if layer.bias is None else layer.bias.nbytes
    assert sum(tensor.nbytes for tensor in [*layer.parameters(), *layer.buffers()]) == planned + bias


@pytest.mark.parametrize(("method", "form", "kind"), list(cases()))
def test_nothing_as_large_as_the_weight_outlives_a_forward(method: str, form: dict[str, Any], kind: str) -> None:
    layer = quantized(method, form, kind)
    own = layer._buffers["weight"]
    assert own is not None
    assert own.element_size() == 1
    before = tensors_alive()
    run(layer)
    gc.collect()
    known = {id(tensor) for tensor in before}
    logical = prod(layer.weight_shape)
    assert [each for each in tensors_alive() if id(each) not in known and each.numel() >= logical] == []
    # Nor did loading leave any: all that a layer holds is its codes, its scales and its bias.
    held = [value for value in vars(layer).values() if isinstance(value, torch.Tensor)]
    assert held == []


def tensors_alive() -> list[torch.Tensor]:
    return [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]


@contextmanager
def calls(*names: str) -> Iterator[list[str]]:
    """The operators of ours among `names` that run inside."""
    seen: list[str] = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func.name().removeprefix("policyquant::").partition(".")[0]
            if name in names:
                seen.append(name)
            return func(*args, **(kwargs or {}))

    with Recorder():
        yield seen


QUANTIZERS = ("static_scaled_fp8_quant", "dynamic_scaled_fp8_quant", "per_token_scaled_fp8_quant")


@pytest.mark.parametrize("kind", ["linear", "qkv", "merged", "head"])
@pytest.mark.parametrize("form", FORMS["fp8"])
def test_w8a8_quantizes_each_input_once_and_multiplies_codes(form: dict[str, Any], kind: str) -> None:
    layer = quantized("fp8", form, kind)
    with calls(*QUANTIZERS, "scaled_mm") as seen:
        run(layer)
    assert len(seen) == 2
    assert seen[0] in QUANTIZERS
    assert seen[1] == "scaled_mm"


@pytest.mark.parametrize("method", QUANTIZING)
def test_a_mixture_reads_the_chosen_experts_only(method: str) -> None:
    torch.manual_seed(0)
    moe = FusedMoE(4, 2, K, 24)
    for name in ("gate_up_proj", "down_proj"):
        experts = getattr(moe, name)
        state = logical_state(torch.nn.ModuleDict({"x": torch.nn.ModuleDict({"e": experts})}))
        names = {part.name: part for part in part_names(experts, "x.e")}
        slots = {
            Slot("weight", names[key.rpartition(".")[0]].part, names[key.rpartition(".")[0]].expert): MemoryTensor(
                key, tensor.clone()
            )
            for key, tensor in state.items()
        }
        found = method_for(scheme(method, {}))
        experts.take_method(found, torch.device("cpu"))
        found.load(experts, slots)
    logits = torch.tensor([[9.0, 0.0, 8.0, 0.0], [8.0, 0.0, 9.0, 0.0]])
    x = torch.randn(2, K)
    with torch.no_grad():
        before = moe(x, logits)
        for name in ("gate_up_proj", "down_proj"):
            scale = getattr(moe, name)._buffers["weight_scale"]
            scale[1] = scale[3] = float("nan")
        assert torch.equal(moe(x, logits), before)
