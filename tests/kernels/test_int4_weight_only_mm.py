"""Products of activations as they are with 4-bit weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from policyquant.kernels import dispatch, ops, reference
from policyquant.kernels.reference.int4_quantize import unpacked
from tests.kernels import error_bounds, hostile
from tests.kernels.device import DEVICE

GROUPS = (32, 64, 128)
HALVES = (torch.bfloat16, torch.float16)
pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", params=["torch", "triton"], autouse=True)
def implementation(request: pytest.FixtureRequest) -> Iterator[None]:
    with dispatch.force(request.param):
        yield


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def weight(
    n: int, k: int, group: int, asymmetric: bool = False, dtype: torch.dtype = torch.float32, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Any bytes, scales, and zero points or none."""
    generator = torch.Generator().manual_seed(seed)
    packed = torch.randint(0, 256, (n, -(-k // 2)), generator=generator, dtype=torch.uint8)
    shape = (n, -(-k // group))
    scale = (torch.rand(shape, generator=generator) + 0.01).to(dtype)
    return packed, scale, torch.randint(0, 16, shape, generator=generator, dtype=torch.uint8) if asymmetric else None


def moved(x: Any) -> Any:
    """The tensor on the device under test, with its strides, its offset and what lies beside it."""
    if not isinstance(x, torch.Tensor):
        return x
    storage = x.as_strided((x.untyped_storage().nbytes() // x.itemsize,), (1,), 0)
    return storage.to(DEVICE).as_strided(x.shape, x.stride(), x.storage_offset())


def multiply(*operands: Any) -> torch.Tensor:
    return ops.int4_weight_only_mm(*(moved(each) for each in operands)).cpu()


def magnitude_of(
    x: torch.Tensor,
    packed: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor | None,
    group: int,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Σ |x · weight| + |bias|."""
    k = x.shape[1]
    zero = torch.full(scale.shape, 8) if zero_point is None else zero_point
    values = (unpacked(packed, k) - zero.long().repeat_interleave(group, -1)[:, :k]).abs().double()
    total = x.double().abs() @ (values * scale.double().repeat_interleave(group, -1)[:, :k]).T
    return total if bias is None else total + bias.double().abs()


def assert_right(
    y: torch.Tensor,
    x: torch.Tensor,
    packed: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor | None,
    group: int,
    bias: torch.Tensor | None = None,
) -> None:
    """Sums in float32 and one rounding."""
    exact = reference.int4_weight_only_mm(x, packed, scale, zero_point, group, bias)
    magnitude = magnitude_of(x, packed, scale, zero_point, group, bias)
    error_bounds.assert_within(y, exact, error_bounds.product(magnitude, x.shape[1]))


@pytest.mark.parametrize("asymmetric", [False, True], ids=["symmetric", "asymmetric"])
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 1, 1), (1, 33, 700), (3, 70, 144), (16, 65, 128), (17, 9, 131), (70, 9, 33), (2, 3, 0)]
)
def test_it_is_the_product_with_the_decoded_weight(m: int, n: int, k: int, group: int, asymmetric: bool) -> None:
    x, bias = drawn(m, k, dtype=HALVES[(m + n) % 2]), drawn(n, seed=1)
    packed, scale, zero_point = weight(n, k, group, asymmetric)
    y = multiply(x, packed, scale, zero_point, group, bias, torch.float32)
    assert_right(y, x, packed, scale, zero_point, group, bias)


@pytest.mark.parametrize("out_dtype", hostile.FLOATS)
@pytest.mark.parametrize("scale_dtype", hostile.FLOATS)
@pytest.mark.parametrize("x_dtype", hostile.FLOATS)
def test_any_activations_any_scales_and_any_result(
    x_dtype: torch.dtype, scale_dtype: torch.dtype, out_dtype: torch.dtype
) -> None:
    x = drawn(3, 70, dtype=x_dtype)
    packed, scale, zero_point = weight(35, 70, 32, True, scale_dtype)
    y = multiply(x, packed, scale, zero_point, 32, None, out_dtype)
    assert (y.shape, y.dtype) == ((3, 35), out_dtype)
    assert_right(y, x, packed, scale, zero_point, 32)


@pytest.mark.parametrize("x_dtype", hostile.FLOATS)
def test_every_code_less_every_zero_point_is_exact(x_dtype: torch.dtype) -> None:
    """Two columns, of which one at a time is multiplied by one."""
    packed = torch.arange(256).to(torch.uint8)[:, None].repeat(16, 1)
    zero_point = torch.arange(16).to(torch.uint8).repeat_interleave(256)[:, None]
    scale = torch.full((4096, 1), 0.25)
    y = multiply(torch.eye(2, dtype=x_dtype), packed, scale, zero_point, 64, None, torch.float32)
    expected = (unpacked(packed, 2).double() - zero_point) * 0.25
    assert torch.equal(y.T.double(), expected)
    symmetric = multiply(torch.eye(2, dtype=x_dtype), packed[:256], scale[:256], None, 64, None, torch.float32)
    assert torch.equal(symmetric.T.double(), expected[8 * 256 : 9 * 256])


def test_a_weight_that_was_encoded_is_the_weight_again() -> None:
    w = drawn(40, 200)
    packed, scale = ops.int4_group_quant(moved(w), 64)
    y = multiply(torch.eye(200), packed.cpu(), scale.cpu(), None, 64, None, torch.float32).T
    assert bool(((y - w).abs() <= scale.cpu().repeat_interleave(64, -1)[:, :200] * 0.501).all())


@pytest.mark.parametrize("layout", hostile.LAYOUTS)
def test_operands_may_have_any_layout_and_what_lies_beside_them_is_not_read(layout: str) -> None:
    x = drawn(5, 146, dtype=torch.bfloat16)
    packed, scale, zero_point = weight(37, 146, 32, True)
    assert zero_point is not None
    bias = drawn(74)[::2]
    laid = [hostile.laid_out(each, layout) for each in (x, packed, scale, zero_point)]
    assert_right(multiply(*laid, 32, bias), x, packed, scale, zero_point, 32, bias)


@pytest.mark.parametrize("k", [63, 65, 191])
def test_the_last_half_of_an_odd_row_is_not_read(k: int) -> None:
    x = torch.full((3, k + 9), float("nan"))
    x[:, :k] = drawn(3, k)
    packed, scale, _ = weight(5, k, 32)
    y = multiply(x[:, :k], packed, scale, None, 32)
    assert_right(y, x[:, :k], packed, scale, None, 32)
    packed[:, -1] ^= 0xF0
    assert torch.equal(multiply(x[:, :k], packed, scale, None, 32), y)


def test_parts_of_k_are_added_in_the_same_order_every_time() -> None:
    x, operands = drawn(1, 4096, dtype=torch.bfloat16), weight(8, 4096, 128)
    bias = drawn(8)
    results = [multiply(x, *operands, 128, bias, torch.float32) for _ in range(2)]
    assert torch.equal(*results)
    assert_right(results[0], x, *operands, 128, bias)


def test_nan_and_infinity_stay_in_their_rows() -> None:
    x = torch.ones(4, 40)
    x[1, 3], x[2, 39] = float("nan"), float("inf")
    y = multiply(x.bfloat16(), torch.full((18, 20), 0x99, dtype=torch.uint8), torch.ones(18, 2), None, 32)
    assert y.isfinite().all(-1).tolist() == [True, False, False, True]
    assert y[0].tolist() == [40.0] * 18


@settings(max_examples=15)
@given(x=hostile.tensors(at_least=1), n=st.integers(1, 9), seed=st.integers(0, 2**32), asymmetric=st.booleans())
def test_hostile_activations(x: torch.Tensor, n: int, seed: int, asymmetric: bool) -> None:
    """Rows that hold NaN or infinity have no finite result, but where all of the weight's codes mean zero."""
    packed, scale, zero_point = weight(n, x.shape[1], 32, asymmetric, seed=seed)
    y = multiply(x, packed, scale, zero_point, 32, None, torch.float32)
    exact = reference.int4_weight_only_mm(x, packed, scale, zero_point, 32)
    magnitude = magnitude_of(x, packed, scale, zero_point, 32)
    finite = x.isfinite().all(-1, keepdim=True)
    sure = finite & (magnitude < error_bounds.LARGEST_FLOAT32 / 512)
    bound = error_bounds.product(magnitude, x.shape[1], scale.max().double())
    error_bounds.assert_within(y[sure], exact[sure], bound[sure])
    assert not bool(y[~finite[:, 0]].isfinite().any())


def test_nothing_is_written_beside_the_result() -> None:
    storage = torch.full((3 * 33 + 64,), -7.0, device=DEVICE)
    out = storage[32:-32].view(3, 33)
    x, (packed, scale, _) = drawn(3, 50), weight(33, 50, 32)
    given_ = (x.to(DEVICE), packed.to(DEVICE), scale.to(DEVICE), None, 32, None)
    torch.ops.policyquant.int4_weight_only_mm.out(*given_, out=out)
    assert_right(out.cpu(), x, packed, scale, None, 32)
    assert bool((storage[:32] == -7).all())
    assert bool((storage[-32:] == -7).all())


@pytest.mark.parametrize(("m", "n"), [(0, 5), (3, 0)])
def test_nothing_times_something_is_nothing(m: int, n: int) -> None:
    assert multiply(drawn(m, 8), *weight(n, 8, 32), 32).shape == (m, n)


def test_offsets_pass_32_bits() -> None:
    """The last row lies beyond 2**31 bytes, its number and its stride do not; of what is between, none is touched."""
    step = 2**30 + 64
    storage = torch.empty(2 * step + 64, dtype=torch.uint8, device=DEVICE)
    far = storage.as_strided((3, 64), (step, 1))
    packed, scale, _ = weight(3, 128, 128)
    far[:] = packed.to(DEVICE)
    x = drawn(3, 128, dtype=torch.bfloat16)
    y = ops.int4_weight_only_mm(x.to(DEVICE), far, scale.to(DEVICE)).cpu()
    assert_right(y, x, packed, scale, None, 128)


X, (PACKED, SCALE, ZERO_POINT) = drawn(3, 40), weight(5, 40, 32, True)


@pytest.mark.parametrize(
    ("operands", "message"),
    [
        ((X, PACKED, SCALE, None, 48), "group_size is one of 32, 64, 128; found 48"),
        ((X, PACKED.to(torch.int8), SCALE, None, 32), "packed is torch.int8, expected uint8"),
        ((X[:, 2:], PACKED, SCALE, None, 32), "x is \\[3, 38\\] and packed \\[5, 20\\]"),
        ((X, PACKED, SCALE, None, 128), "the scale is \\[5, 2\\] torch.float32, expected \\[5, 1\\]"),
        ((X, PACKED, SCALE.double(), None, 32), "in float32, bfloat16 or float16"),
        ((X, PACKED, SCALE, ZERO_POINT.int(), 32), "the zero point is \\[5, 2\\] torch.int32"),
        ((X, PACKED, SCALE, ZERO_POINT[:, :1], 32), "the zero point is \\[5, 1\\]"),
        ((X, PACKED, SCALE, None, 32, torch.ones(4)), "the bias is \\[4\\]"),
    ],
)
def test_what_does_not_belong_together_is_refused(operands: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        multiply(*operands)
