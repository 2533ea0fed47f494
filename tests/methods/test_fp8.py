"""Method `fp8`: what is stored, what is refused, what is computed, and how far it may be off."""

from __future__ import annotations

import re
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from policyquant.checkpoint.tensors import LazyTensor, MemoryTensor, Slot
from policyquant.errors import PolicyQuantError
from policyquant.layers.base import WeightLayer
from policyquant.methods import fp8, pieces
from policyquant.methods.dtypes import FP8
from policyquant.methods.fp8 import Fp8
from policyquant.plan.sizes import scheme_bytes
from policyquant.policy.load import load_policy
from policyquant.policy.methods import METHODS
from policyquant.policy.scheme import Scheme
from policyquant.quantized_tensor import QuantizedTensor

K = 20
CPU = torch.device("cpu")
STATIC = {"scheme": "static", "granularity": "tensor"}
HALF_ULP = {"float8_e4m3fn": 2.0**-4, "float8_e5m2": 2.0**-3}
HALF_SUBNORMAL = {"float8_e4m3fn": 2.0**-10, "float8_e5m2": 2.0**-17}


class Layer(WeightLayer):
    """A layer that is nothing but its weights."""

    def __init__(self, method: Fp8, parts: dict[str, int], experts: int | None = None, bias: bool = False) -> None:
        super().__init__(K, parts, has_bias=bias, num_experts=experts, prefix="model.layer", dtype=torch.float32)
        self.take_method(method, CPU)


def method(weight: dict[str, Any] | None = None, input: dict[str, Any] | None = None, output: Any = None) -> Fp8:
    spec = METHODS["fp8"]
    of_weight, of_input = spec.refine(spec.weight, spec.input, weight, input)
    return Fp8(Scheme("fp8", of_weight, of_input, output))


def slots(weights: dict[tuple[str, int | None], torch.Tensor], **others: torch.Tensor) -> dict[Slot, LazyTensor]:
    """Weights by part and expert; `others` are stored once for each of them."""
    result: dict[Slot, LazyTensor] = {}
    for (part, expert), tensor in weights.items():
        for suffix, value in {"weight": tensor, **others}.items():
            result[Slot(suffix, part, expert)] = MemoryTensor(f"{part}.{expert}.{suffix}", value)
    return result


def loaded(layer: Layer, tensors: dict[Slot, LazyTensor]) -> Layer:
    assert list(layer.quant_method.check(layer, tensors)) == []
    layer.quant_method.load(layer, tensors)
    layer.quant_method.process_weights_after_loading(layer)
    return layer


def plain(values: torch.Tensor, **options: Any) -> Layer:
    """A layer of one part that was loaded from a plain weight."""
    return loaded(Layer(method(**options), {"": len(values)}), slots({("", None): values}))


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def within_format(values: torch.Tensor, result: torch.Tensor, scale: torch.Tensor, dtype: str) -> bool:
    """Whether each element errs by half a step of the format at most, with room for rounding in float32."""
    bound = torch.maximum(values.abs() * HALF_ULP[dtype], scale * HALF_SUBNORMAL[dtype])
    return bool(((values - result).abs() <= bound * (1 + 2.0**-18)).all())


@pytest.mark.parametrize("granularity", ["channel", "tensor"])
@pytest.mark.parametrize("input", [{}, STATIC])
@pytest.mark.parametrize("parts", [{"": 7}, {"q": 5, "k": 3}])
@pytest.mark.parametrize("experts", [None, 3])
@pytest.mark.parametrize("bias", [False, True])
def test_stored_bytes_are_those_of_the_plan(
    granularity: str, input: dict[str, Any], parts: dict[str, int], experts: int | None, bias: bool
) -> None:
    scheme_method = method({"granularity": granularity}, input)
    layer = Layer(scheme_method, parts, experts, bias)
    leading = () if experts is None else (experts,)
    planned = sum(scheme_bytes(scheme_method.scheme, (*leading, rows, K)) for rows in parts.values())
    of_bias = 4 * sum(parts.values()) * (experts or 1) if bias else 0
    assert sum(tensor.nbytes for tensor in layer.state_dict().values()) == planned + of_bias
    assert layer.state_dict()["weight"].dtype == torch.float8_e4m3fn


@pytest.mark.parametrize("dtype", list(FP8))
@pytest.mark.parametrize("granularity", ["channel", "tensor"])
@pytest.mark.parametrize("factor", [1.0, 1e-30, 1e30])
def test_a_weight_errs_by_half_a_step_of_its_format(dtype: str, granularity: str, factor: float) -> None:
    weight = random(9, K) * torch.logspace(-6, 3, 9)[:, None] * factor
    layer = plain(weight, weight={"dtype": dtype, "granularity": granularity})
    scale = layer._buffers["weight_scale"]
    assert scale is not None
    assert within_format(weight, layer.quant_method.dequantize(layer), scale, dtype)


@pytest.mark.parametrize("granularity", ["channel", "tensor"])
def test_a_weight_of_zeros_has_a_usable_scale(granularity: str) -> None:
    layer = plain(torch.zeros(4, K), weight={"granularity": granularity})
    scale = layer._buffers["weight_scale"]
    assert scale is not None
    assert bool((scale.isfinite() & (scale > 0)).all())
    assert torch.equal(layer.quant_method.dequantize(layer), torch.zeros(4, K))


@pytest.mark.parametrize("granularity", ["channel", "tensor"])
def test_runs_of_rows_give_what_one_run_gives(granularity: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = random(11, K)
    whole = plain(weight, weight={"granularity": granularity}).state_dict()
    monkeypatch.setattr(pieces, "_CHUNK_ELEMENTS", 3 * K)
    in_runs = plain(weight, weight={"granularity": granularity}).state_dict()
    assert all(torch.equal(whole[name].float(), in_runs[name].float()) for name in whole)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("granularity", ["channel", "tensor"])
def test_a_weight_that_is_not_finite_is_named_with_its_index(value: float, granularity: str) -> None:
    weight = random(5, K)
    weight[3, 2] = value
    with pytest.raises(PolicyQuantError, match=r"'\.None\.weight' holds .* at \[3, 2\]"):
        plain(weight, weight={"granularity": granularity})


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (6,), (6, 1)])
def test_stored_codes_are_taken_as_they_are(shape: tuple[int, ...]) -> None:
    codes = random(6, K).to(torch.float8_e4m3fn)
    scale = torch.rand(shape) + 0.5
    layer = loaded(Layer(method(), {"": 6}), slots({("", None): codes}, weight_scale=scale))
    state = layer.state_dict()
    assert torch.equal(state["weight"].float(), codes.float())
    assert torch.equal(state["weight_scale"], scale.reshape(-1, 1).expand(6, 1))


def test_stored_codes_of_another_granularity_are_quantized_again() -> None:
    codes, scale = random(6, K).to(torch.float8_e4m3fn), torch.rand(6, 1) + 0.5
    layer = Layer(method({"granularity": "tensor"}), {"": 6})
    loaded(layer, slots({("", None): codes}, weight_scale=scale))
    own = layer.state_dict()["weight_scale"]
    assert own.shape == (1,)
    assert within_format(codes.float() * scale, layer.quant_method.dequantize(layer), own, "float8_e4m3fn")


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_stored_scale_must_be_finite_and_positive(value: float) -> None:
    codes = random(6, K).to(torch.float8_e4m3fn)
    with pytest.raises(PolicyQuantError, match=r"weight_scale' holds .*a scale must be finite and positive"):
        loaded(Layer(method(), {"": 6}), slots({("", None): codes}, weight_scale=torch.tensor(value)))


def test_a_merged_layer_keeps_one_scale_for_each_part() -> None:
    small, large = random(5, K), random(3, K) * 1000
    layer = Layer(method({"granularity": "tensor"}), {"q": 5, "k": 3})
    loaded(layer, slots({("q", None): small, ("k", None): large}))
    alone = [plain(weight, weight={"granularity": "tensor"}) for weight in (small, large)]
    expected = torch.cat([each.state_dict()["weight_scale"] for each in alone])
    assert torch.equal(layer.state_dict()["weight_scale"], expected)
    x = random(4, K)
    separate = torch.cat([each.quant_method.apply(each, x) for each in alone], dim=1)
    torch.testing.assert_close(layer.quant_method.apply(layer, x), separate, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("input", [{}, {"granularity": "tensor"}, {**STATIC, "scale": 0.01}])
def test_the_product_is_that_of_the_dequantized_operands(input: dict[str, Any]) -> None:
    layer, x = plain(random(6, K), input=input), random(2, 3, K)
    read = Fp8._quantize(method(input=input), x, layer._buffers.get("input_scale"))
    assert read.data.dtype == torch.float8_e4m3fn
    expected = read.dequantize().double() @ layer.quant_method.dequantize(layer).double().T
    y = layer.quant_method.apply(layer, x)
    assert (y.shape, y.dtype) == ((2, 3, 6), torch.float32)
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("granularity", ["token", "tensor"])
def test_codes_that_arrive_quantized_are_read_as_they_are(granularity: str) -> None:
    layer, x = plain(random(6, K), input={"granularity": granularity}), random(2, 3, K)
    apply = layer.quant_method.apply
    arrived = method(input={"granularity": granularity})._quantize(x, None)
    assert torch.equal(apply(layer, arrived), apply(layer, x))
    # Scales that no quantization of these values would give show whose scales were used.
    doubled = QuantizedTensor(arrived.data, arrived.scale * 2, arrived.granularity, arrived.dtype)
    assert torch.equal(apply(layer, doubled), 2 * apply(layer, x))


def test_codes_of_another_format_are_quantized_again() -> None:
    layer, x = plain(random(6, K)), random(3, K)
    arrived = method(input={"dtype": "float8_e5m2"})._quantize(x, None)
    apply = layer.quant_method.apply
    assert torch.equal(apply(layer, arrived), apply(layer, arrived.dequantize()))


@pytest.mark.parametrize("output", [None, "bfloat16", "float16"])
def test_the_result_has_the_dtype_that_the_plan_says(output: str | None) -> None:
    layer = plain(random(6, K), output=output)
    expected = torch.float32 if output is None else getattr(torch, output)
    assert layer.quant_method.apply(layer, random(3, K)).dtype == expected
    assert layer.quant_method.apply(layer, torch.empty(0, K)).shape == (0, 6)


def test_an_upper_bound_holds_for_dynamic_scales() -> None:
    layer = plain(torch.eye(K), input={"scale_ub": 1 / 448})
    y = layer.quant_method.apply(layer, torch.full((1, K), 100.0))
    assert float(y.abs().max()) == pytest.approx(1.0, rel=1e-5)


def test_a_static_scale_without_a_source_is_an_error_that_names_the_fix() -> None:
    layer = Layer(method(input=STATIC), {"": 6})
    (problem,) = layer.quant_method.check(layer, slots({("", None): random(6, K)}))
    assert "model.layer" in problem
    assert "input: {scheme: static, scale: ...} or input: {scheme: dynamic}" in problem


def test_parts_share_the_largest_of_their_stored_input_scales() -> None:
    layer = Layer(method(input=STATIC), {"q": 5, "k": 3})
    tensors = slots({("q", None): random(5, K), ("k", None): random(3, K)}, input_scale=torch.tensor(0.25))
    tensors[Slot("input_scale", "k")] = MemoryTensor("k.input_scale", torch.tensor([0.5]))
    assert loaded(layer, tensors).state_dict()["input_scale"].tolist() == [0.5, 0.5]


def test_the_policys_static_scale_goes_before_the_stored_one() -> None:
    layer = Layer(method(input={**STATIC, "scale": 0.125}), {"": 6})
    tensors = slots({("", None): random(6, K)}, input_scale=torch.tensor(0.5))
    assert loaded(layer, tensors).state_dict()["input_scale"].tolist() == [0.125]


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        ({}, "no weight is stored"),
        ({"weight": torch.ones(5, K)}, r"has shape \[5, 20\]; expected \[6, 20\]"),
        ({"weight": torch.ones(6, K, dtype=torch.int8)}, "is stored as torch.int8; expected float32, float16"),
        ({"weight": torch.ones(6, K).to(torch.float8_e4m3fn)}, "no weight_scale is stored with it"),
        ({"weight": torch.ones(6, K), "bias": torch.ones(6)}, "has no place in this layer"),
    ],
)
def test_what_cannot_be_loaded_is_said_before_loading(stored: dict[str, torch.Tensor], said: str) -> None:
    layer = Layer(method(), {"": 6})
    tensors: dict[Slot, LazyTensor] = {Slot(name): MemoryTensor(name, tensor) for name, tensor in stored.items()}
    (problem,) = layer.quant_method.check(layer, tensors)
    assert problem.startswith("model.layer: ")
    assert re.search(said, problem)


@pytest.mark.parametrize("input", [{}, {"granularity": "tensor"}, {**STATIC, "scale": 0.01}])
@pytest.mark.parametrize("granularity", ["channel", "tensor"])
def test_each_expert_computes_its_own_rows_and_no_other_is_read(input: dict[str, Any], granularity: str) -> None:
    weights, bias = random(3, 6, K), random(6)
    options = {"weight": {"granularity": granularity}, "input": input}
    layer = Layer(method(**options), {"": 6}, experts=3, bias=True)
    loaded(layer, slots({("", expert): weights[expert] for expert in range(3)}, bias=bias))
    layer.state_dict()["weight_scale"][1] = float("nan")
    x = random(5, K)
    y = layer.quant_method.apply_experts(layer, x, [2, 0, 3])
    read = method(**options)._quantize(x, torch.tensor([0.01]) if input.get("scheme") else None)
    for rows, expert in ((slice(0, 2), 0), (slice(2, 5), 2)):
        alone = Layer(method(**options), {"": 6}, bias=True)
        loaded(alone, slots({("", None): weights[expert]}, bias=bias))
        assert torch.equal(y[rows], alone.quant_method.apply(alone, read[rows]))


def test_a_scheme_may_be_replaced() -> None:
    layer = plain(random(6, K))
    again = Fp8(replace(layer.scheme, output="bfloat16"))
    layer.take_method(again, CPU)
    assert sorted(layer.state_dict()) == ["weight", "weight_scale"]


def test_a_stored_code_that_is_no_number_is_named_with_its_index() -> None:
    values = random(6, K)
    values[4, 7] = float("nan")
    codes = values.to(torch.float8_e4m3fn)
    with pytest.raises(PolicyQuantError, match=r"'\.None\.weight' holds nan at \[4, 7\]"):
        loaded(Layer(method(), {"": 6}), slots({("", None): codes}, weight_scale=torch.tensor(1.0)))


def test_the_documented_example_is_a_policy_that_uses_the_method(tmp_path: Path) -> None:
    example = textwrap.dedent((fp8.__doc__ or "").split("Example\n-------\n")[1])
    path = tmp_path / "example.yaml"
    path.write_text(example, encoding="utf-8")
    assert [rule.fields.method for rule in load_policy(path).rules] == ["fp8", "fp8"]
