"""Method `int8_weight_only`: what it stores, how far it errs, what it refuses."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from policyquant.checkpoint.tensors import LazyTensor, MemoryTensor, Slot
from policyquant.errors import PolicyQuantError
from policyquant.layers.base import WeightLayer
from policyquant.methods import int8_weight_only, pieces
from policyquant.methods.int8_weight_only import Int8WeightOnly
from policyquant.plan.sizes import scheme_bytes
from policyquant.policy.load import load_policy
from policyquant.policy.methods import METHODS
from policyquant.policy.scheme import Scheme

K = 20
GRANULARITIES = ["channel", "tensor"]


class Layer(WeightLayer):
    """A layer that is nothing but its weights."""

    def __init__(self, granularity: str, parts: dict[str, int], experts: int | None = None, output: Any = None) -> None:
        super().__init__(K, parts, has_bias=False, num_experts=experts, prefix="model.layer", dtype=torch.float32)
        spec = METHODS["int8_weight_only"]
        weight, _ = spec.refine(spec.weight, None, {"granularity": granularity}, None)
        self.take_method(Int8WeightOnly(Scheme("int8_weight_only", weight, None, output)), torch.device("cpu"))


def loaded(layer: Layer, weights: dict[tuple[str, int | None], torch.Tensor]) -> Layer:
    tensors: dict[Slot, LazyTensor] = {
        Slot("weight", part, expert): MemoryTensor(f"{part}.{expert}.weight", weight)
        for (part, expert), weight in weights.items()
    }
    assert list(layer.quant_method.check(layer, tensors)) == []
    layer.quant_method.load(layer, tensors)
    return layer


def plain(weight: torch.Tensor, granularity: str = "channel", output: Any = None) -> Layer:
    return loaded(Layer(granularity, {"": len(weight)}, output=output), {("", None): weight})


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("parts", [{"": 7}, {"q": 5, "k": 3}])
@pytest.mark.parametrize("experts", [None, 3])
def test_stored_bytes_are_those_of_the_plan(granularity: str, parts: dict[str, int], experts: int | None) -> None:
    layer = Layer(granularity, parts, experts)
    leading = () if experts is None else (experts,)
    planned = sum(scheme_bytes(layer.scheme, (*leading, rows, K)) for rows in parts.values())
    assert sum(tensor.nbytes for tensor in layer.state_dict().values()) == planned
    assert layer.state_dict()["weight"].dtype == torch.int8


@pytest.mark.parametrize("granularity", GRANULARITIES)
@given(exponent=st.integers(-100, 100), seed=st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_a_weight_errs_by_half_a_scale(granularity: str, exponent: int, seed: int) -> None:
    weight = torch.randn(6, K, generator=torch.Generator().manual_seed(seed)) * 2.0**exponent
    layer = plain(weight, granularity)
    scale = layer._buffers["weight_scale"]
    assert scale is not None
    error = (layer.quant_method.dequantize(layer) - weight).abs()
    # Room for the division and the product in float32, each of codes up to 127.
    assert bool((error <= scale * (0.5 + 2.0**-15)).all())


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_a_weight_of_zeros_has_a_usable_scale(granularity: str) -> None:
    layer = plain(torch.zeros(4, K), granularity)
    scale = layer._buffers["weight_scale"]
    assert scale is not None
    assert bool((scale.isfinite() & (scale > 0)).all())
    assert not bool(layer.quant_method.dequantize(layer).any())


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_weight_that_is_not_finite_is_named_with_its_index(granularity: str, value: float) -> None:
    weight = random(5, K)
    weight[3, 7] = value
    with pytest.raises(PolicyQuantError, match=r"'\.None\.weight' holds -?(nan|inf) at \[3, 7\]"):
        plain(weight, granularity)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_runs_of_rows_give_what_one_run_gives(granularity: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = random(11, K)
    whole = plain(weight, granularity).state_dict()
    monkeypatch.setattr(pieces, "_CHUNK_ELEMENTS", 3 * K)
    for name, tensor in plain(weight, granularity).state_dict().items():
        assert torch.equal(tensor, whole[name])


def test_a_merged_layer_keeps_one_scale_for_each_part() -> None:
    small, large = random(5, K), random(3, K) * 1000
    layer = loaded(Layer("tensor", {"q": 5, "k": 3}), {("q", None): small, ("k", None): large})
    alone = [plain(part, "tensor").quant_method.dequantize(plain(part, "tensor")) for part in (small, large)]
    assert torch.equal(layer.quant_method.dequantize(layer), torch.cat(alone))


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("shape", [(K,), (3, K), (2, 3, K), (0, K)])
def test_the_product_is_that_of_the_dequantized_weight(granularity: str, shape: tuple[int, ...]) -> None:
    layer = plain(random(7, K), granularity)
    x = random(*shape)
    expected = x.double() @ layer.quant_method.dequantize(layer).double().T
    torch.testing.assert_close(layer.quant_method.apply(layer, x), expected.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_each_expert_computes_its_own_rows_and_no_other_is_read(granularity: str) -> None:
    weights: dict[tuple[str, int | None], torch.Tensor] = {("w", e): random(7, K) + e for e in range(3)}
    layer = loaded(Layer(granularity, {"w": 7}, experts=3), weights)
    scale = layer._buffers["weight_scale"]
    assert scale is not None
    full = layer.quant_method.dequantize(layer)
    scale[1] = float("nan")
    x = random(5, K)
    result = layer.quant_method.apply_experts(layer, x, [2, 0, 3])
    expected = torch.cat((x[:2] @ full[0].T, x[2:] @ full[2].T))
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_rows_of_an_embedding_are_those_of_the_dequantized_weight(granularity: str) -> None:
    layer = plain(random(7, K), granularity)
    ids = torch.tensor([[0, 6], [3, 3]])
    assert torch.equal(layer.quant_method.embed(layer, ids), layer.quant_method.dequantize(layer)[ids])


@pytest.mark.parametrize(("output", "dtype"), [(None, torch.float32), ("bfloat16", torch.bfloat16)])
def test_the_result_has_the_dtype_that_the_plan_says(output: Any, dtype: torch.dtype) -> None:
    layer = plain(random(4, K), output=output)
    assert layer.quant_method.apply(layer, random(2, K)).dtype == dtype


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ({}, "model.layer: no weight is stored"),
        ({Slot("weight"): MemoryTensor("w", torch.zeros(5, K))}, r"'w' has shape \[5, 20\]; expected \[6, 20\]"),
        ({Slot("weight"): MemoryTensor("w", torch.zeros(6, K, dtype=torch.int8))}, "stored as torch.int8"),
        (
            {Slot("weight"): MemoryTensor("w", torch.zeros(6, K)), Slot("bias"): MemoryTensor("b", torch.zeros(6))},
            "'b' has no place in this layer",
        ),
    ],
)
def test_what_cannot_be_loaded_is_said_before_loading(tensors: dict[Slot, LazyTensor], problem: str) -> None:
    layer = Layer("channel", {"": 6})
    with pytest.raises(AssertionError, match=problem):
        raise AssertionError("\n".join(layer.quant_method.check(layer, tensors)))


def test_the_example_is_a_policy(tmp_path: Path) -> None:
    example = textwrap.dedent((int8_weight_only.__doc__ or "").split("Example\n-------\n")[1])
    (tmp_path / "policy.yaml").write_text(example)
    assert load_policy(tmp_path / "policy.yaml").rules
