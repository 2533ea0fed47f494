"""Every method is what its reference says: the same codes, and sums that differ by float32 and one rounding."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from policyquant.checkpoint.tensors import MemoryTensor, Slot
from policyquant.kernels import ops, reference
from policyquant.layers.base import WeightLayer
from policyquant.layers.linear import Linear
from policyquant.methods.pieces import entry, pieces
from policyquant.methods.registry import method_for
from policyquant.quantized_tensor import QuantizedTensor
from tests.kernels import error_bounds
from tests.methods import layers_under_test as under_test
from tests.methods.layers_under_test import MERGED, PRODUCTS, TAKEN, W8A8, loaded

every_form = pytest.mark.parametrize("form", under_test.FORMS)
every_product = pytest.mark.parametrize("kind", PRODUCTS)


def assert_as_reference(layer: WeightLayer, x: Any) -> None:
    """The layer's result is its reference's, but for the error of float32 sums and of one rounding."""
    method, counts = layer.quant_method, under_test.counts_of(layer)
    y, exact = under_test.apply(layer, x), method.reference(layer, x, counts)
    assert exact.dtype == torch.float64
    assert y.shape == exact.shape
    values, weight = method.reference_input(layer, x, counts), method.reference_weight(layer)
    magnitude = under_test.by_expert(layer, values.abs(), weight.abs()) + under_test.bias_by_row(layer).abs()
    error_bounds.assert_within(y, exact, error_bounds.product(magnitude, layer.in_features))


@every_form
@every_product
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_result_is_that_of_the_reference(form: str, kind: str, dtype: torch.dtype) -> None:
    layer = loaded(kind, form, dtype)
    assert_as_reference(layer, under_test.some_input(layer))


@every_form
@pytest.mark.parametrize("shape", [(0, under_test.K), (1, under_test.K), (2, 3, under_test.K), (under_test.K,)])
def test_the_reference_takes_the_shapes_that_the_layer_takes(form: str, shape: tuple[int, ...]) -> None:
    layer = loaded("linear", form)
    assert_as_reference(layer, torch.randn(shape, generator=torch.Generator().manual_seed(2)))


def arriving(x: torch.Tensor, dtype: torch.dtype, granularity: str) -> QuantizedTensor:
    """x as a layer with `output: fp8` hands it on."""
    quantize = ops.per_token_scaled_fp8_quant if granularity == "token" else ops.dynamic_scaled_fp8_quant
    return QuantizedTensor(*quantize(x, dtype=dtype), granularity, x.dtype)  # type: ignore[arg-type]


@every_form
@pytest.mark.parametrize("kind", ["linear", "experts"])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("granularity", ["token", "tensor"])
def test_an_input_that_arrives_quantized_is_read_as_the_reference_says(
    form: str, kind: str, dtype: torch.dtype, granularity: str
) -> None:
    layer = loaded(kind, form, torch.bfloat16)
    x = arriving(under_test.some_input(layer), dtype, granularity)
    assert_as_reference(layer, x)
    if form in W8A8 and ("e5m2" in form) == (dtype == torch.float8_e5m2):
        multiplied = layer.quant_method.reference_input(layer, x, under_test.counts_of(layer))
        assert torch.equal(multiplied, reference.dequantize(x.data, x.scale)), "its codes are not quantized again"


@contextmanager
def multiplied() -> Iterator[list[torch.Tensor]]:
    """The left operands of `scaled_mm`, codes times scales, in the order of the calls."""
    seen: list[torch.Tensor] = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.name().startswith("policyquant::scaled_mm"):
                seen.append(reference.dequantize(args[0], args[2]))
            return func(*args, **(kwargs or {}))

    with Recorder():
        yield seen


@pytest.mark.parametrize("form", W8A8)
@every_product
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_w8a8_multiplies_the_codes_of_the_reference(form: str, kind: str, dtype: torch.dtype) -> None:
    layer = loaded(kind, form, dtype)
    x = under_test.some_input(layer)
    with multiplied() as operands:
        under_test.apply(layer, x)
    expected = layer.quant_method.reference_input(layer, x, under_test.counts_of(layer))
    assert torch.equal(torch.cat(operands), expected)
    assert not torch.equal(expected, x.double()), "the input is quantized indeed"


@pytest.mark.parametrize(("form", "kind"), [each for each in TAKEN if each[0] != "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_piece_is_stored_with_the_codes_and_scales_of_the_reference(
    form: str, kind: str, dtype: torch.dtype
) -> None:
    """A scale for each row, or one for each part of a layer, and of each expert."""
    scheme, layer = under_test.scheme_of(form), under_test.LAYERS[kind](dtype)
    stored = under_test.stored_tensors(layer, form)
    under_test.load(layer, form, stored)
    codes, scales = layer._buffers["weight"], layer._buffers["weight_scale"]
    assert codes is not None
    assert scales is not None
    assert scheme.weight is not None
    per_tensor = scheme.weight.granularity == "tensor"
    for number, (expert, part, rows) in enumerate(pieces(layer)):
        weight = stored[Slot("weight", part, expert)]
        flat = weight.reshape(1, -1) if per_tensor else weight
        if codes.dtype == torch.int8:
            q, scale = reference.per_channel_int8_quant(flat)
        else:
            q, scale = reference.per_token_scaled_fp8_quant(flat, None, codes.dtype)
        own = slice(number % len(layer.parts), number % len(layer.parts) + 1) if per_tensor else rows
        assert torch.equal(entry(codes, expert)[rows].view(torch.uint8), q.reshape(weight.shape).view(torch.uint8))
        assert torch.equal(entry(scales, expert)[own].flatten(), scale.flatten())


@every_form
@pytest.mark.parametrize("kind", MERGED)
def test_a_part_of_a_merged_layer_is_what_it_would_be_alone(form: str, kind: str) -> None:
    """Its weight exactly; its product up to the order of float32 sums, unless the parts share a static scale."""
    layer = under_test.LAYERS[kind](torch.float32)
    stored = under_test.stored_tensors(layer, form)
    whole = under_test.load(layer, form, stored).quant_method.reference_weight(layer)
    for expert, part, rows in pieces(layer):
        alone = Linear(layer.in_features, rows.stop - rows.start, layer.has_bias)
        own = {Slot(slot.suffix): each for slot, each in stored.items() if (slot.part, slot.expert) == (part, expert)}
        under_test.load(alone, form, own)
        assert torch.equal(entry(whole, expert)[rows], alone.quant_method.reference_weight(alone))


@pytest.mark.parametrize("kind", MERGED)
@pytest.mark.parametrize("form", ["fp8 per tensor", "int8_weight_only per tensor"])
def test_no_part_pays_for_the_size_of_another(form: str, kind: str) -> None:
    """With one scale for all parts, the smallest of them, 3 to 243 times smaller than the largest, would."""
    layer = under_test.LAYERS[kind](torch.float32)
    stored = under_test.stored_tensors(layer, form)
    codes = under_test.load(layer, form, stored)._buffers["weight"]
    assert codes is not None
    largest = 127 if codes.dtype == torch.int8 else torch.finfo(codes.dtype).max
    for expert, _, rows in pieces(layer):
        assert float(reference.decode(entry(codes, expert)[rows]).abs().max()) >= largest


@pytest.mark.parametrize(("form", "kind"), TAKEN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_logical_weight_is_that_of_the_reference_rounded(form: str, kind: str, dtype: torch.dtype) -> None:
    layer = loaded(kind, form, dtype)
    exact = layer.quant_method.reference_weight(layer)
    assert torch.equal(layer.quant_method.dequantize(layer), exact.float().to(dtype))
    if kind == "embedding":
        ids = torch.tensor([[0, 10], [3, 3]])
        assert torch.equal(layer.quant_method.embed(layer, ids), exact.float().to(dtype)[ids])


def test_each_expert_quantizes_its_rows_by_its_own_static_scale() -> None:
    layer = loaded("experts", "fp8 static from the checkpoint")
    scales = layer._buffers["input_scale"]
    assert scales is not None
    # Of each expert's two parts the larger: 0.004 times 2, 4 and 6.
    torch.testing.assert_close(scales, torch.tensor([[0.008] * 2, [0.016] * 2, [0.024] * 2]))
    x = under_test.some_input(layer)
    values = layer.quant_method.reference_input(layer, x, under_test.COUNTS)
    for rows, expert in ((slice(0, 2), 0), (slice(2, 5), 2)):
        codes = reference.static_scaled_fp8_quant(x[rows], scales[expert, :1])
        assert torch.equal(values[rows], reference.dequantize(codes, scales[expert, :1]))


@pytest.mark.parametrize("kind", PRODUCTS)
def test_a_static_scale_from_nowhere_is_an_error_before_loading_for_each_piece(kind: str) -> None:
    layer = under_test.LAYERS[kind](torch.float32)
    stored = under_test.stored_tensors(layer, "fp8")
    method = method_for(under_test.scheme_of("fp8 static from the checkpoint"))
    problems = list(method.check(layer, {slot: MemoryTensor(str(slot), each) for slot, each in stored.items()}))
    assert len(problems) == len(list(pieces(layer)))
    for problem in problems:
        assert "write input: {scheme: static, scale: ...} or input: {scheme: dynamic}" in problem
