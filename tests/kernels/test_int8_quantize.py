"""Encoding of activations to int8."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from policyquant.kernels import dispatch, ops, reference
from policyquant.kernels.cpu import int8_quantize as plain
from tests.kernels import error_bounds, hostile
from tests.kernels.device import DEVICE

PER_TOKEN = ("per_token_int8_quant", "asymmetric_per_token_int8_quant")
NAN, INF = float("nan"), float("inf")
HUNDREDTH = torch.tensor([0.01])

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", params=["torch", "triton"], autouse=True)
def implementation(request: pytest.FixtureRequest) -> Iterator[None]:
    """Everything here runs by each, and each gives the same codes."""
    with dispatch.force(request.param):
        yield


def encoded(name: str, x: torch.Tensor, *arguments: Any) -> tuple[torch.Tensor, ...]:
    """Codes, and scales and zero points if the operator makes them."""
    moved = [each.to(DEVICE) if isinstance(each, torch.Tensor) else each for each in (x, *arguments)]
    made = getattr(ops, name)(*moved)
    return tuple(each.cpu() for each in (made if isinstance(made, tuple) else (made,)))


def assert_as_reference(name: str, x: torch.Tensor, *arguments: Any) -> None:
    """To the bit."""
    expected = getattr(reference, name)(x, *arguments)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for found, wanted in zip(encoded(name, x, *arguments), expected, strict=True):
        assert found.is_contiguous()
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


zero_points = st.none() | st.integers(-128, 127).map(lambda z: torch.tensor([z], dtype=torch.int32))


@pytest.mark.parametrize("name", PER_TOKEN)
@given(x=hostile.tensors())
@settings(max_examples=15)
def test_codes_scales_and_zero_points_are_those_of_the_reference(name: str, x: torch.Tensor) -> None:
    assert_as_reference(name, x)


@given(x=hostile.tensors(), scale=hostile.scale_values, zero_point=zero_points)
@settings(max_examples=15)
def test_codes_by_a_static_scale_are_those_of_the_reference(
    x: torch.Tensor, scale: float, zero_point: torch.Tensor | None
) -> None:
    assert_as_reference("static_scaled_int8_quant", x, torch.tensor([scale]), zero_point)


@pytest.mark.parametrize("name", [*PER_TOKEN, "static_scaled_int8_quant"])
@pytest.mark.parametrize("shape", [(5,), (1, 1), (0, 4), (3, 0), (2, 3, 5), (40, 129), (2, 4100), (1, 9000)])
def test_every_shape(name: str, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    if name == "static_scaled_int8_quant":
        assert_as_reference(name, x, HUNDREDTH, torch.tensor([3], dtype=torch.int32))
    else:
        assert_as_reference(name, x)


@pytest.mark.parametrize("layout", hostile.LAYOUTS)
@pytest.mark.parametrize("name", PER_TOKEN)
def test_rows_may_lie_in_any_way(name: str, layout: str) -> None:
    x = hostile.laid_out(torch.randn(7, 130, generator=torch.Generator().manual_seed(0)).bfloat16(), layout)
    assert_as_reference(name, x)
    assert_as_reference("static_scaled_int8_quant", x, HUNDREDTH)


def test_a_number_is_encoded_too() -> None:
    assert encoded("static_scaled_int8_quant", torch.tensor(0.5), HUNDREDTH)[0].item() == 50


def test_codes_of_columns_are_contiguous_in_whatever_way_they_are_asked_for() -> None:
    x = torch.ones(4, 6).T
    with dispatch.force("torch"):
        assert ops.per_token_int8_quant(x)[0].is_contiguous()
    assert plain.per_token_int8_quant(x)[0].is_contiguous()


def test_the_largest_magnitude_has_the_code_127() -> None:
    """vLLM's divisor: no code is -128, and no element is further than half a step from its code."""
    x = torch.tensor([[1.0, -2.0, 0.5], [0.0, 3.0, -3.0]])
    q, scale = encoded("per_token_int8_quant", x)
    assert scale.flatten().tolist() == (torch.tensor([2.0, 3.0]) / 127).tolist()
    assert q.tolist() == [[64, -127, 32], [0, 127, -127]]


def test_with_a_zero_point_all_codes_are_used_and_zero_is_exact() -> None:
    x = torch.tensor([[-1.0, 0.0, 254.0], [2.0, 4.0, 510.0], [-255.0, -1.0, 0.0], [0.0, 0.0, 0.0]])
    q, scale, zero_point = encoded("asymmetric_per_token_int8_quant", x)
    assert scale.flatten().tolist() == [1.0, 2.0, 1.0, 2.0**-126]
    assert zero_point.flatten().tolist() == [-127, -128, 127, -128]
    assert zero_point.dtype == torch.int32
    assert q.tolist() == [[-128, -127, 127], [-127, -126, 127], [-128, 126, 127], [-128] * 3]


@given(x=hostile.tensors())
@settings(max_examples=15)
def test_each_element_errs_by_half_a_step(x: torch.Tensor) -> None:
    """One step with a zero point, which is rounded too."""
    finite = x.isfinite() & ~x.isnan().any(-1, keepdim=True)
    q, scale = encoded("per_token_int8_quant", x)
    error = (x.double() - q.double() * scale.double()).abs()
    assert bool((error <= error_bounds.encoding(x, scale, torch.int8))[finite].all())
    q, scale, zero_point = encoded("asymmetric_per_token_int8_quant", x)
    low, high = torch.where(x.isfinite(), x, 0).double().aminmax(dim=-1, keepdim=True) if x.numel() else (x, x)
    fits = finite & (high - low <= error_bounds.LARGEST_FLOAT32)
    error = (x.double() - (q.double() - zero_point) * scale.double()).abs()
    assert bool((error <= scale.double() * (1 + 2.0**-13))[fits].all())


@pytest.mark.parametrize("name", PER_TOKEN)
@pytest.mark.parametrize("width", [200, 9000])
@pytest.mark.parametrize("at", [0, -1])
def test_a_row_with_nan_has_a_scale_that_is_nan_and_no_other_row_has(at: int, width: int, name: str) -> None:
    x = torch.randn(4, width, generator=torch.Generator().manual_seed(0))
    expected = encoded(name, x)
    x[2, at] = NAN
    found = encoded(name, x)
    assert found[1].isnan().flatten().tolist() == [False, False, True, False]
    assert not any(bool(each[2].any()) for each in found if not each.is_floating_point())
    others = [0, 1, 3]
    assert all(torch.equal(each[others], wanted[others]) for each, wanted in zip(found, expected, strict=True))


def test_infinity_saturates_and_does_not_count_for_the_scale() -> None:
    x = torch.tensor([[INF, -INF, 127.0, -1.0]])
    q, scale = encoded("per_token_int8_quant", x)
    assert (q.tolist(), scale.tolist()) == ([[127, -128, 127, -1]], [[1.0]])
    q, scale, zero_point = encoded("asymmetric_per_token_int8_quant", torch.tensor([[INF, -INF, 254.0, -1.0]]))
    assert (q.tolist(), scale.tolist(), zero_point.tolist()) == ([[127, -128, 127, -128]], [[1.0]], [[-127]])


def test_a_static_scale_clamps_and_takes_nan_for_zero() -> None:
    x = torch.tensor([NAN, INF, -INF, 1e9, -1e9, 0.5, 1.5, -2.5])
    one, seven = torch.ones(1), torch.tensor([7], dtype=torch.int32)
    assert encoded("static_scaled_int8_quant", x, one)[0].tolist() == [0, 127, -128, 127, -128, 0, 2, -2]
    assert encoded("static_scaled_int8_quant", x, one, seven)[0].tolist() == [7, 127, -128, 127, -128, 7, 9, 5]


@pytest.mark.parametrize("scale", [0.0, -1.0, 1e-40, 2.0**-126])
def test_a_static_scale_is_at_least_the_smallest_normal_number(scale: float) -> None:
    x = torch.tensor([0.0, 1.0, -1.0, 2.0**-126, 2.0**-125])
    assert encoded("static_scaled_int8_quant", x, torch.tensor([scale]))[0].tolist() == [0, 127, -128, 1, 2]


@pytest.mark.parametrize("zero_point", [None, 0, 11])
def test_ties_go_to_the_even_code_before_the_zero_point_is_added(zero_point: int | None) -> None:
    steps = torch.arange(-250, 250) + 0.5
    scales = torch.rand(64, generator=torch.Generator().manual_seed(0)) + 0.01
    for scale in scales:
        given_ = None if zero_point is None else torch.tensor([zero_point], dtype=torch.int32)
        assert_as_reference("static_scaled_int8_quant", (steps * scale.double()).float(), scale.reshape(1), given_)


@pytest.mark.parametrize("sign", [1, -1])
def test_zero_is_among_the_values_of_a_row_that_has_none(sign: int) -> None:
    x = sign * torch.linspace(3.0, 255.0, 128)[None]
    q, scale, zero_point = encoded("asymmetric_per_token_int8_quant", x)
    assert scale.item() == 1.0
    assert zero_point.item() == (-128 if sign == 1 else 127)
    assert q[0, [0, -1]].tolist() == ([-125, 127] if sign == 1 else [124, -128])


def test_a_width_beyond_float32_saturates() -> None:
    x = torch.tensor([[3e38, -3e38, 0.0, 1e38]])
    assert_as_reference("asymmetric_per_token_int8_quant", x)
    assert bool(encoded("asymmetric_per_token_int8_quant", x)[1].isfinite().all())


def test_nothing_is_written_beside_the_results() -> None:
    x = torch.randn(3, 70, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    codes = torch.full((5, 70), 99, dtype=torch.int8, device=DEVICE)
    scales = torch.full((5, 1), -1.0, device=DEVICE)
    points = torch.full((5, 1), 999, dtype=torch.int32, device=DEVICE)
    own = {"out": codes[1:4], "out_scale": scales[1:4], "out_zero_point": points[1:4]}
    torch.ops.policyquant.asymmetric_per_token_int8_quant.out(x, **own)
    for found, wanted in zip(own.values(), reference.asymmetric_per_token_int8_quant(x.cpu()), strict=True):
        assert torch.equal(found.cpu(), wanted)
    assert bool((codes[[0, 4]] == 99).all())
    assert scales[[0, 4]].flatten().tolist() == [-1.0] * 2
    assert points[[0, 4]].flatten().tolist() == [999] * 2


def test_elements_beyond_two_to_the_31st_are_reached() -> None:
    pitch = 2**30 + 64
    base = torch.empty(2 * pitch + 128, dtype=torch.bfloat16, device=DEVICE)
    x = base.as_strided((3, 128), (pitch, 1))
    x.copy_(torch.randn(3, 128, generator=torch.Generator().manual_seed(0)))
    q, scale = ops.per_token_int8_quant(x)
    expected, expected_scale = reference.per_token_int8_quant(x.cpu())
    assert torch.equal(q.cpu(), expected)
    assert torch.equal(scale.cpu(), expected_scale)


@pytest.mark.parametrize(
    ("scale", "zero_point", "message"),
    [
        (torch.ones(3), None, "the scale is \\[3\\]"),
        (torch.ones(1).half(), None, "expected one float32"),
        (torch.ones(1), torch.ones(1), "expected one int32"),
        (torch.ones(1), torch.ones(2, dtype=torch.int32), "the zero point is \\[2\\]"),
    ],
)
def test_what_is_not_one_scale_or_one_zero_point_is_refused(
    scale: torch.Tensor, zero_point: torch.Tensor | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        encoded("static_scaled_int8_quant", torch.ones(3), scale, zero_point)
