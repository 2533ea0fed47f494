"""Encoding to 8 bits, on hostile values: the reference's codes to the bit, one rule for NaN, and the format's error."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from policyquant.kernels import dispatch, ops, reference
from tests.kernels import error_bounds, hostile
from tests.kernels.device import OnDevice, on_device

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
ON_DEVICE = OnDevice()

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", params=["torch", "triton", "cuda"], autouse=True)
def implementation(request: pytest.FixtureRequest) -> Iterator[None]:
    """Everything here runs by each, and each gives the same codes."""
    with dispatch.force(request.param):
        yield


@dataclass(frozen=True)
class Quantizer:
    """An operator that encodes, with its arguments after x. A static scale is the first of them."""

    name: str
    arguments: tuple[Any, ...]

    def by(self, module: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes and scales as the function of this name in `module` gives them."""
        result = getattr(module, self.name)(x, *self.arguments)
        return result if isinstance(result, tuple) else (result, self.arguments[0])

    def into_out(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes and scales as the `.out` overload leaves them in tensors that held other values."""
        q, scale = (torch.empty_like(each) for each in self.by(reference, x))
        q.view(torch.uint8).fill_(0x55)
        targets = {"out": q}
        if self.name == "static_scaled_fp8_quant":
            scale = self.arguments[0]
        else:
            targets["out_scale"] = scale.fill_(-1.0)
        packet = getattr(torch.ops.policyquant, self.name)
        assert on_device(packet.out, x, *self.arguments[:-1], **targets) is None
        return q, scale


INT8 = Quantizer("per_channel_int8_quant", ())
DYNAMIC = ("per_token_scaled_fp8_quant", "dynamic_scaled_fp8_quant")
STATIC = "static_scaled_fp8_quant"


@st.composite
def quantizers(draw: Any, name: str, dtype: torch.dtype) -> Quantizer:
    """The operator with any static scale, or any upper bound or none."""
    if name == INT8.name:
        return INT8
    if name == STATIC:
        return Quantizer(name, (torch.tensor([draw(hostile.scale_values)]), dtype))
    return Quantizer(name, (draw(st.none() | hostile.scale_values), dtype))


every_operator = pytest.mark.parametrize(
    ("name", "dtype"),
    [(INT8.name, torch.int8), *((name, dtype) for name in (*DYNAMIC, STATIC) for dtype in (E4M3, E5M2))],
)
through_both_overloads = pytest.mark.parametrize("out", [False, True], ids=["", "out"])


def quantized(quantizer: Quantizer, x: torch.Tensor, out: bool) -> tuple[torch.Tensor, torch.Tensor]:
    return quantizer.into_out(x) if out else quantizer.by(ON_DEVICE, x)


def same_codes(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether all bytes are equal, the sign of zero included; one NaN is as good as another."""
    nan = reference.decode(expected).isnan()
    equal = found.view(torch.uint8) == expected.view(torch.uint8)
    return found.dtype == expected.dtype and bool((equal | (nan & reference.decode(found).isnan())).all())


@every_operator
@through_both_overloads
@given(x=hostile.tensors(), data=st.data())
@settings(max_examples=15)
def test_codes_and_scales_are_those_of_the_reference(
    name: str, dtype: torch.dtype, out: bool, x: torch.Tensor, data: st.DataObject
) -> None:
    quantizer = data.draw(quantizers(name, dtype))
    (q, scale), (expected, expected_scale) = quantized(quantizer, x, out), quantizer.by(reference, x)
    assert q.shape == x.shape
    assert same_codes(q, expected)
    assert scale.dtype == torch.float32
    assert torch.equal(scale, expected_scale)


@every_operator
@through_both_overloads
@given(x=hostile.tensors(), data=st.data())
@settings(max_examples=15)
def test_nan_stays_nan_infinity_saturates_and_neither_reaches_others(
    name: str, dtype: torch.dtype, out: bool, x: torch.Tensor, data: st.DataObject
) -> None:
    """The rule of `ops` for NaN, which int8 lacks: there it has code 0."""
    quantizer = data.draw(quantizers(name, dtype))
    q, scale = quantized(quantizer, x, out)
    assert bool((scale.isfinite() & (scale > 0)).all())
    values, is_int8 = reference.decode(q), dtype == torch.int8
    assert torch.equal(values.isnan(), torch.zeros_like(x, dtype=torch.bool) if is_int8 else x.isnan())
    if is_int8:
        assert not bool(values[x.isnan()].any())
    largest = 127 if is_int8 else torch.finfo(dtype).max
    assert bool((values[x == float("inf")] == largest).all())
    assert bool((values[x == -float("inf")] == (-128 if is_int8 else -largest)).all())
    # What is finite has the codes and scales that it has among zeros.
    without, scale_without = quantizer.by(ON_DEVICE, torch.where(x.isfinite(), x, 0.0))
    assert torch.equal(scale, scale_without)
    assert torch.equal(values[x.isfinite()], reference.decode(without)[x.isfinite()])
    assert not bool(values[(x == 0).all(-1)].any())


@every_operator
@given(x=hostile.tensors(), data=st.data())
def test_each_element_errs_by_no_more_than_its_format(
    name: str, dtype: torch.dtype, x: torch.Tensor, data: st.DataObject
) -> None:
    q, scale = data.draw(quantizers(name, dtype)).by(ON_DEVICE, x)
    error = (x.double() - reference.dequantize(q, scale)).abs()
    assert bool((error <= error_bounds.encoding(x, scale, dtype))[x.isfinite()].all())


@pytest.mark.parametrize("dtype", [torch.int8, E4M3, E5M2])
def test_ties_between_codes_go_to_the_even_one_under_any_scale(dtype: torch.dtype) -> None:
    """x / scale is a division: a product with 1 / scale, rounded twice, moves ties to either side."""
    codes = torch.arange(0, 127, dtype=torch.int32).to(torch.uint8).view(dtype)
    values = reference.decode(codes)
    values = values[values.isfinite()]
    ties = (values[1:] + values[:-1]) / 2
    scales = torch.rand(500, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.01
    # Each row's largest element gives it the scale from which its ties were made, or one next to that.
    largest = 127.5 if dtype == torch.int8 else torch.finfo(dtype).max
    x = (scales * torch.cat((ties, -ties, torch.tensor([largest]))).double()).float()
    quantizer = INT8 if dtype == torch.int8 else Quantizer(DYNAMIC[0], (None, dtype))
    (q, scale), (expected, _) = quantizer.by(ON_DEVICE, x), quantizer.by(reference, x)
    assert same_codes(q, expected)
    quotient = reference.quotient(x, scale)
    assert int((quotient[:, :-1].abs() == ties.repeat(2)).sum()) > 1000, "there are ties among them"


@pytest.mark.parametrize("name", DYNAMIC)
@pytest.mark.parametrize("dtype", [E4M3, E5M2])
@given(x=hostile.tensors(at_least=1), scale_ub=hostile.scale_values)
@settings(max_examples=15)
def test_a_scale_is_what_it_would_be_or_the_upper_bound(
    name: str, dtype: torch.dtype, x: torch.Tensor, scale_ub: float
) -> None:
    _, scale = Quantizer(name, (scale_ub, dtype)).by(ON_DEVICE, x)
    _, unbounded = Quantizer(name, (None, dtype)).by(ON_DEVICE, x)
    assert torch.equal(scale, unbounded.clamp(max=scale_ub))


@pytest.mark.parametrize("shape", [(0,), (5,), (1, 1), (3, 0), (0, 3), (2, 3, 5), (2, 0, 5), (1, 2, 1, 3)])
@pytest.mark.parametrize(
    "quantizer",
    [INT8, *(Quantizer(name, (None, E4M3)) for name in DYNAMIC), Quantizer(STATIC, (torch.ones(1), E4M3))],
    ids=lambda quantizer: quantizer.name,
)
def test_every_shape_keeps_its_own(quantizer: Quantizer, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    (q, scale), (expected, expected_scale) = quantizer.by(ON_DEVICE, x), quantizer.by(reference, x)
    assert q.shape == shape
    assert q.is_contiguous()
    assert same_codes(q, expected)
    assert torch.equal(scale, expected_scale)


@pytest.mark.parametrize("dtype", [torch.int8, E4M3, E5M2])
@pytest.mark.parametrize("to", hostile.FLOATS)
@given(scale=hostile.scale_values)
@settings(max_examples=20)
def test_every_code_is_decoded_exactly_and_rounded_once(dtype: torch.dtype, to: torch.dtype, scale: float) -> None:
    q = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype)
    found = ON_DEVICE.dequantize(q, torch.tensor([scale]), to)
    expected = reference.dequantize(q, torch.tensor([scale])).float().to(to)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_the_reference_reads_codes_as_torch_does(dtype: torch.dtype) -> None:
    q = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype)
    torch.testing.assert_close(reference.decode(q), q.double(), rtol=0, atol=0, equal_nan=True)
    assert reference.FP8_FORMATS[dtype].largest == torch.finfo(dtype).max


OPERATORS = [
    name
    for name, each in vars(ops).items()
    if inspect.isfunction(each) and not name.startswith("_") and not name.endswith("_out")
]


@pytest.mark.parametrize("name", OPERATORS)
def test_every_operator_has_a_reference_of_its_name_and_arguments(name: str) -> None:
    """Less the dtype of a result that the reference gives in float64."""
    own = list(inspect.signature(getattr(ops, name)).parameters)
    of_reference = list(inspect.signature(getattr(reference, name)).parameters)
    assert of_reference == [each for each in own if each in of_reference]
    assert set(own) - set(of_reference) <= {"dtype", "out_dtype"}
