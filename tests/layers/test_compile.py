"""Every layer under every form of every method is one graph for torch.compile, whatever the number of tokens."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest
import torch
from torch import nn

from policyquant import layers
from policyquant.layers.activation import GeluAndMul, SiluAndMul
from policyquant.layers.attention import Attention
from policyquant.layers.base import WeightLayer
from policyquant.layers.linear import ColumnParallelLinear, RowParallelLinear
from policyquant.layers.moe import FusedMoE
from policyquant.layers.norm import RMSNorm
from policyquant.methods.registry import BUILT_IN
from policyquant.policy.methods import METHODS
from policyquant.policy.scheme import Quantization, Scheme
from policyquant.quantized_tensor import QuantizedTensor
from tests.methods.layers_under_test import FORMS, LAYERS, K, load, stored_tensors

Inputs = Callable[[int], tuple[Any, ...]]
"""Arguments of a layer for so many tokens."""

WITH_WEIGHTS: Mapping[str, Callable[[torch.dtype], WeightLayer]] = {
    **LAYERS,
    "column parallel": lambda dtype: ColumnParallelLinear(K, 7, dtype=dtype),
    "row parallel": lambda dtype: RowParallelLinear(K, 7, dtype=dtype),
}
CODES = Quantization("float8_e4m3fn", "token", scheme="dynamic")
STATIC = Quantization("float8_e4m3fn", "tensor", scheme="static", scale=0.02)
EMITTING: Mapping[str, tuple[Callable[[], nn.Module], int]] = {
    "silu_and_mul": (SiluAndMul, 1),
    "gelu_and_mul": (GeluAndMul, 1),
    "rms_norm": (lambda: RMSNorm(40), 1),
    "rms_norm after a residual": (lambda: RMSNorm(40), 2),
    "attention": (lambda: Attention(4, 10, 2), 3),
}
OUTPUTS = {"plain": None, "float32": "float32", "codes": CODES, "static codes": STATIC}


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def weighted(kind: str, form: str) -> tuple[nn.Module, Inputs]:
    layer = WITH_WEIGHTS[kind](torch.float32)
    load(layer, form, stored_tensors(layer, form))
    if kind == "embedding":
        return layer, lambda tokens: (torch.arange(tokens) % 11,)
    if layer.num_experts is not None:
        return layer, lambda tokens: (drawn(tokens, K), torch.arange(tokens) % 3)
    return layer, lambda tokens: (drawn(tokens, K),)


def mixture(form: str) -> tuple[nn.Module, Inputs]:
    moe = FusedMoE(3, 2, K, 6, dtype=torch.float32)
    for layer in (moe.gate_up_proj, moe.down_proj):
        stored = stored_tensors(layer, form)
        small = {slot: tensor / 1000 if slot.suffix == "weight" else tensor for slot, tensor in stored.items()}
        load(layer, form, small)
    return moe, lambda tokens: (drawn(tokens, K), drawn(tokens, 3))


def emitting(kind: str, output: str) -> tuple[nn.Module, Inputs]:
    make, count = EMITTING[kind]
    layer: Any = make()
    layer.take_scheme(Scheme("none", output=OUTPUTS[output]))
    if kind == "attention":
        return layer, lambda tokens: tuple(drawn(2, tokens, heads, 10) for heads in (4, 2, 2))
    return layer, lambda tokens: tuple(drawn(tokens, 40) for _ in range(count))


def quick_if_default(form: str) -> list[Any]:
    """The first form of each method is quick."""
    return [] if form in BUILT_IN else [pytest.mark.slow]


def taken() -> Iterator[Any]:
    for form, (method, _) in FORMS.items():
        for kind in WITH_WEIGHTS:
            if kind != "embedding" or "embedding" in METHODS[method].kinds:
                yield pytest.param(form, kind, marks=quick_if_default(form))


def parts(result: Any) -> list[torch.Tensor]:
    """The tensors of a result."""
    if isinstance(result, QuantizedTensor):
        return [result.data, result.scale]
    return [part for each in result for part in parts(each)] if isinstance(result, tuple) else [result]


def assert_one_graph_for_all(layer: nn.Module, inputs: Inputs, backend: Any = "eager", same: bool = True) -> None:
    """Compiled once for the first number of tokens, once for any other, with the layer's own results."""
    torch._dynamo.reset()
    graphs = 0

    def counting(module: Any, examples: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return module if backend == "eager" else torch._dynamo.lookup_backend(backend)(module, examples)

    with torch.no_grad():
        compiled = torch.compile(layer, fullgraph=True, backend=counting, dynamic=True)
        for tokens in (5, 7, 3):
            given = inputs(tokens)
            for found, expected in zip(parts(compiled(*given)), parts(layer(*given)), strict=True):
                assert (found.dtype, found.stride()) == (expected.dtype, expected.stride())
                if same or found.dtype.itemsize == 1:
                    assert torch.equal(found.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8))
                else:
                    torch.testing.assert_close(found, expected)
    assert graphs == 1


def test_every_layer_and_every_method_is_here() -> None:
    classes = {
        each
        for module in iter_modules(layers.__path__)
        for _, each in inspect.getmembers(import_module(f"policyquant.layers.{module.name}"), inspect.isclass)
        if issubclass(each, nn.Module) and each.__module__.startswith("policyquant.layers") and each.__name__[0] != "_"
    }
    bases = {"PolicyLayer", "WeightLayer", "EmittingLayer"}
    made = [make(torch.float32) for make in WITH_WEIGHTS.values()] + [make() for make, _ in EMITTING.values()]
    tested = {type(each) for each in made} | {FusedMoE}
    assert {each.__name__ for each in classes - tested} == bases
    assert {method for method, _ in FORMS.values()} == set(BUILT_IN)
    assert {form for form in FORMS if not quick_if_default(form)} == set(BUILT_IN)


@pytest.mark.parametrize(("form", "kind"), list(taken()))
def test_a_layer_with_weights(form: str, kind: str) -> None:
    assert_one_graph_for_all(*weighted(kind, form))


@pytest.mark.parametrize("form", [pytest.param(form, marks=quick_if_default(form)) for form in FORMS])
def test_a_mixture(form: str) -> None:
    # In a graph every expert multiplies all rows, and torch adds up many rows in another order than few.
    assert_one_graph_for_all(*mixture(form), same=False)


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("kind", EMITTING)
def test_a_layer_that_emits_codes(kind: str, output: str) -> None:
    assert_one_graph_for_all(*emitting(kind, output))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own, when Inductor is first used
@pytest.mark.parametrize(
    "make",
    [
        lambda: weighted("linear", "fp8"),
        lambda: weighted("qkv", "int8_weight_only"),
        lambda: emitting("rms_norm after a residual", "codes"),
        lambda: emitting("silu_and_mul", "codes"),
        lambda: mixture("fp8"),
    ],
    ids=["linear", "qkv", "norm", "activation", "mixture"],
)
def test_inductor_makes_code_of_it(make: Callable[[], tuple[nn.Module, Inputs]]) -> None:
    assert_one_graph_for_all(*make(), backend="inductor", same=False)
