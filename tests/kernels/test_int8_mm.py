"""Products of int8 codes with int8 codes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from policyquant.kernels import dispatch, ops, reference
from tests.kernels import error_bounds, hostile
from tests.kernels.device import DEVICE

ONE = torch.ones(1)
pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", params=["torch", "triton"], autouse=True)
def implementation(request: pytest.FixtureRequest) -> Iterator[None]:
    with dispatch.force(request.param):
        yield


def codes(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(-128, 128, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.int8)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) + 0.01


def moved(x: Any) -> Any:
    """The tensor on the device under test, with its strides, its offset and what lies beside it."""
    if not isinstance(x, torch.Tensor):
        return x
    storage = x.as_strided((x.untyped_storage().nbytes() // x.itemsize,), (1,), 0)
    return storage.to(DEVICE).as_strided(x.shape, x.stride(), x.storage_offset())


def multiply(*operands: Any, **named: Any) -> torch.Tensor:
    given_ = {name: moved(each) for name, each in named.items()}
    return ops.scaled_int8_mm(*(moved(each) for each in operands), **given_).cpu()


def sums_of(b: torch.Tensor) -> torch.Tensor:
    return b.sum(1, dtype=torch.int32)


def assert_right(
    y: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    bias: torch.Tensor | None = None,
    zero_point: torch.Tensor | None = None,
) -> None:
    """The sum is exact: its rounding to float32, two scales and a bias are all that errs."""
    exact = reference.scaled_int8_mm(a, b, scale_a, scale_b, bias, zero_point)
    magnitude = reference.scaled_int8_mm(a, b, scale_a, scale_b, None, zero_point).abs()
    if bias is not None:
        magnitude = magnitude + bias.double().abs()
    error_bounds.assert_within(y, exact, error_bounds.product(magnitude, 0, scale_a.max(), scale_b.max()))


@pytest.mark.parametrize("asymmetric", [False, True], ids=["symmetric", "asymmetric"])
@pytest.mark.parametrize("of_rows", [False, True], ids=["one scale", "scales of rows"])
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(1, 1, 1), (1, 33, 700), (3, 70, 144), (16, 129, 128), (33, 64, 130), (70, 9, 33), (130, 5, 260), (2, 3, 0)],
)
def test_it_is_the_product_of_what_was_encoded(m: int, n: int, k: int, of_rows: bool, asymmetric: bool) -> None:
    a, b, bias = codes(m, k), codes(n, k, seed=1), drawn(n, seed=2)
    scale_a, scale_b = (drawn(m, 1), drawn(n, 1, seed=3)) if of_rows else (drawn(1), drawn(1, seed=3))
    zero_point = codes(m if of_rows else 1, 1, seed=4).int() if asymmetric else None
    weight_sums = sums_of(b) if asymmetric else None
    for out_dtype in hostile.FLOATS:
        y = multiply(a, b, scale_a, scale_b, bias, out_dtype, zero_point=zero_point, weight_sums=weight_sums)
        assert (y.shape, y.dtype) == ((m, n), out_dtype)
        assert_right(y, a, b, scale_a, scale_b, bias, zero_point)


def test_sums_of_the_longest_rows_fit() -> None:
    a, b = torch.full((1, 65536), -128, dtype=torch.int8), torch.full((2, 65536), -128, dtype=torch.int8)
    b[1] = 127
    assert multiply(a, b, ONE, ONE, None, torch.float32).tolist() == [[2.0**30, -128.0 * 127 * 65536]]


@pytest.mark.parametrize("m", [1, 5])
def test_sums_are_exact_where_those_of_float32_would_not_be(m: int) -> None:
    """The second half takes off what the first adds, in the opposite order; what is left is small, and exact."""
    half = torch.randint(100, 128, (2, m, 32768), generator=torch.Generator().manual_seed(0), dtype=torch.int8)
    a = torch.cat((half[0], half[0].flip(-1)), dim=-1)
    b = torch.cat((half[1], -half[1].flip(-1)), dim=-1)[:1]
    a[:, -1] = 1
    expected = (a.long() @ b.long().T).double()
    assert bool((expected.abs() < 2**14).all())
    assert torch.equal(multiply(a, b, ONE, ONE, None, torch.float32).double(), expected)


def test_the_zero_point_is_taken_off_before_the_sum_is_rounded() -> None:
    k = 65536
    a = torch.full((2, k), 127, dtype=torch.int8)
    a[0, 0] = 126
    b = torch.full((1, k), -128, dtype=torch.int8)
    zero_point = torch.tensor([[127], [-128]], dtype=torch.int32)
    y = multiply(a, b, ONE, ONE, None, torch.float32, zero_point=zero_point, weight_sums=sums_of(b))
    assert y.flatten().tolist() == [128.0, -255.0 * 128 * k]


def test_parts_of_k_make_no_difference() -> None:
    a, b, scale = codes(1, 8192), codes(8, 8192, seed=1), drawn(8, 1)
    expected = (a.long() @ b.long().T).float() * 0.5 * scale.T
    assert torch.equal(multiply(a, b, torch.tensor([0.5]), scale, None, torch.float32), expected)


def test_a_scale_that_is_nan_stays_in_its_row() -> None:
    x = torch.ones(3, 40)
    x[1, 5] = float("nan")
    q, scale = ops.per_token_int8_quant(moved(x))
    y = multiply(q.cpu(), torch.ones(20, 40, dtype=torch.int8), scale.cpu(), ONE)
    assert y.isnan().all(-1).tolist() == [False, True, False]
    assert bool((y[[0, 2]] == 40).all())


@pytest.mark.parametrize("m", [5, 70])
@pytest.mark.parametrize("layout", hostile.LAYOUTS)
def test_operands_may_have_any_layout_and_what_lies_beside_them_is_not_read(layout: str, m: int) -> None:
    a, b, zero_point = codes(m, 48), codes(37, 48, seed=1), codes(m, 1, seed=2).int()
    scale_a, scale_b, bias = hostile.laid_out(drawn(m, 1), layout), drawn(74, 1)[::2], drawn(74, seed=1)[::2]
    y = multiply(
        hostile.laid_out(a, layout),
        hostile.laid_out(b, layout),
        scale_a,
        scale_b,
        bias,
        zero_point=zero_point.repeat_interleave(2, 0)[::2],
        weight_sums=sums_of(b).repeat_interleave(3)[::3],
    )
    assert_right(y, a, b, scale_a, scale_b, bias, zero_point)


@settings(max_examples=15)
@given(x=hostile.tensors(at_least=1), n=st.integers(1, 9), seed=st.integers(0, 2**32), asymmetric=st.booleans())
def test_hostile_activations(x: torch.Tensor, n: int, seed: int, asymmetric: bool) -> None:
    """Rows that hold NaN give NaN, and no others."""
    quantize = ops.asymmetric_per_token_int8_quant if asymmetric else ops.per_token_int8_quant
    q, scale, *zero_point = (each.cpu() for each in quantize(moved(x)))
    b = codes(n, x.shape[1], seed=seed)
    zero = {"zero_point": zero_point[0], "weight_sums": sums_of(b)} if asymmetric else {}
    y = multiply(q, b, scale, torch.tensor([2.0**-10]), None, torch.float32, **zero)
    nan = x.isnan().any(-1)
    assert torch.equal(y.isnan().all(-1), nan)
    exact = reference.scaled_int8_mm(q, b, scale, torch.tensor([2.0**-10]), None, *zero_point)
    fits = ~nan[:, None] & (exact.abs() * 1024 < error_bounds.LARGEST_FLOAT32)
    error_bounds.assert_within(y[fits], exact[fits], error_bounds.product(exact.abs(), 0, 2.0**-10)[fits])


def test_nothing_is_written_beside_the_result() -> None:
    storage = torch.full((3 * 33 + 64,), -7.0, device=DEVICE)
    out = storage[32:-32].view(3, 33)
    a, b = codes(3, 50), codes(33, 50, seed=1)
    one = ONE.to(DEVICE)
    torch.ops.policyquant.scaled_int8_mm.out(a.to(DEVICE), b.to(DEVICE), one, one, None, None, None, out=out)
    assert_right(out.cpu(), a, b, ONE, ONE)
    assert bool((storage[:32] == -7).all())
    assert bool((storage[-32:] == -7).all())


@pytest.mark.parametrize(("m", "n"), [(0, 5), (3, 0)])
def test_nothing_times_something_is_nothing(m: int, n: int) -> None:
    assert multiply(codes(m, 8), codes(n, 8), ONE, ONE).shape == (m, n)


@pytest.mark.parametrize("m", [2, 70])
def test_offsets_pass_32_bits(m: int) -> None:
    """The last row lies beyond 2**31 codes, its number and its stride do not; of what is between, none is touched."""
    step = 2**30 + 64
    storage = torch.empty(2 * step + 64, dtype=torch.int8, device=DEVICE)
    b = storage.as_strided((3, 64), (step, 1))
    b[:] = codes(3, 64).to(DEVICE)
    a = codes(m, 64, seed=1)
    one = ONE.to(DEVICE)
    assert_right(ops.scaled_int8_mm(a.to(DEVICE), b, one, one).cpu(), a, codes(3, 64), ONE, ONE)


A, B = codes(3, 8), codes(5, 8)
ZERO = torch.zeros(1, dtype=torch.int32)


@pytest.mark.parametrize(
    ("operands", "named", "message"),
    [
        ((A.float(), B, ONE, ONE), {}, "a is torch.float32 and b torch.int8"),
        ((A, codes(5, 7), ONE, ONE), {}, "a is \\[3, 8\\] and b \\[5, 7\\]"),
        ((A, B, torch.ones(4, 1), ONE), {}, "scale_a is \\[4, 1\\], expected \\[1\\] or \\[3, 1\\]"),
        ((A, B, ONE, torch.ones(5)), {}, "scale_b is \\[5\\], expected \\[1\\] or \\[5, 1\\]"),
        ((A, B, ONE, ONE, torch.ones(4)), {}, "the bias is \\[4\\]"),
        ((A, B, ONE, ONE), {"zero_point": ZERO}, "belong together"),
        ((A, B, ONE, ONE), {"zero_point": ZERO, "weight_sums": ZERO}, "weight_sums is \\[1\\]"),
        ((A, B, ONE, ONE), {"zero_point": ONE, "weight_sums": sums_of(B)}, "expected int32"),
        ((codes(1, 65537), codes(1, 65537), ONE, ONE), {}, "K is 65537"),
    ],
)
def test_what_does_not_belong_together_is_refused(
    operands: tuple[Any, ...], named: dict[str, torch.Tensor], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        multiply(*operands, **named)
