"""Products of activations as they are with 8-bit weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from policyquant.kernels import dispatch, ops, reference
from policyquant.kernels.triton import weight_only_mm as kernels
from policyquant.kernels.triton.launch import Target, recording
from tests.kernels import error_bounds, hostile
from tests.kernels.device import DEVICE

E4M3, E5M2, INT8 = torch.float8_e4m3fn, torch.float8_e5m2, torch.int8
CODES = (E4M3, E5M2, INT8)
HALVES = (torch.bfloat16, torch.float16)
ONE = torch.ones(1)
pytestmark = pytest.mark.gpu


@pytest.fixture(params=["torch", "triton 9.0", "triton 8.0"], autouse=True)
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Plain torch, and the kernels as they are for a GPU with 8-bit floats and bulk copies and for one without."""
    name, _, capability = request.param.partition(" ")
    if capability == "8.0":
        monkeypatch.setattr(kernels, "target_of", lambda x: Target((8, 0), 4))
    with dispatch.force(name):
        yield request.param


def codes(n: int, k: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Any codes but NaN and infinity."""
    q = torch.randint(0, 256, (n, k), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    return q.view(dtype) if dtype == INT8 else torch.where(q.view(dtype).float().isfinite(), q, 0).view(dtype)


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def scale_of(granularity: str, n: int, k: int) -> torch.Tensor:
    shape = {"tensor": (1,), "row": (n, 1), "block": (-(-n // 128), -(-k // 128))}[granularity]
    return torch.rand(shape, generator=torch.Generator().manual_seed(7)) + 0.01


def moved(x: Any) -> Any:
    """The tensor on the device under test, with its strides, its offset and what lies beside it."""
    if not isinstance(x, torch.Tensor):
        return x
    storage = x.as_strided((x.untyped_storage().nbytes() // x.itemsize,), (1,), 0)
    return storage.to(DEVICE).as_strided(x.shape, x.stride(), x.storage_offset())


def multiply(*operands: Any) -> torch.Tensor:
    """The operator's result."""
    return ops.weight_only_mm(*(moved(each) for each in operands)).cpu()


def assert_right(
    y: torch.Tensor, x: torch.Tensor, q: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None = None
) -> None:
    """Sums in float32 and one rounding; products are exact."""
    exact = reference.fp8_weight_only_mm(x, q, scale, bias)
    magnitude = reference.fp8_weight_only_mm(
        x.double().abs(), reference.decode(q).abs(), scale, None if bias is None else bias.double().abs()
    )
    error_bounds.assert_within(y, exact, error_bounds.product(magnitude, x.shape[1]))


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("granularity", ["tensor", "row", "block"])
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(1, 1, 1), (1, 33, 700), (3, 70, 144), (16, 129, 128), (17, 64, 130), (70, 9, 33), (5, 40, 1600), (2, 3, 0)],
)
def test_it_is_the_product_with_the_decoded_weight(
    dtype: torch.dtype, granularity: str, m: int, n: int, k: int
) -> None:
    x = drawn(m, k, dtype=HALVES[(m + n) % 2])
    q, scale, bias = codes(n, k, dtype), scale_of(granularity, n, k), drawn(n, seed=1)
    assert_right(multiply(x, q, scale, bias, torch.float32), x, q, scale, bias)


@pytest.mark.parametrize("out_dtype", hostile.FLOATS)
@pytest.mark.parametrize("x_dtype", hostile.FLOATS)
def test_any_activations_and_any_result(x_dtype: torch.dtype, out_dtype: torch.dtype) -> None:
    x, q, scale = drawn(3, 70, dtype=x_dtype), codes(35, 70, E4M3), scale_of("row", 35, 70)
    y = multiply(x, q, scale, None, out_dtype)
    assert (y.shape, y.dtype) == ((3, 35), out_dtype)
    assert_right(y, x, q, scale)


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("x_dtype", hostile.FLOATS)
def test_every_code_is_decoded_exactly(x_dtype: torch.dtype, dtype: torch.dtype) -> None:
    """Weights hold no NaN; one by mistake gives NaN or a number no smaller than the format's largest."""
    q = torch.arange(256).to(torch.uint8).view(dtype)[:, None]
    y = multiply(torch.ones(1, 1, dtype=x_dtype), q, ONE, None, torch.float32)[0].double()
    values = reference.decode(q)[:, 0]
    finite = values.isfinite()
    assert torch.equal(y[finite], values[finite])
    assert bool((y[~finite].isnan() | (y[~finite].abs() > values[finite].abs().max())).all())


@pytest.mark.parametrize("x_dtype", HALVES)
@pytest.mark.parametrize("granularity", ["tensor", "block"])
def test_tiny_and_huge_activations_and_scales_neither_vanish_nor_overflow(
    x_dtype: torch.dtype, granularity: str
) -> None:
    limits = torch.finfo(x_dtype)
    q = codes(130, 256, E4M3)
    for magnitude, scale in ((limits.smallest_normal, 2.0**60), (limits.max / 2, 2.0**-110)):
        x = drawn(2, 256).clamp(-1, 1).mul(magnitude).to(x_dtype)
        of_weight = torch.full_like(scale_of(granularity, 130, 256), scale)
        # Sums beyond float32 are infinite everywhere.
        if float(x.abs().max()) * 448 * 256 < error_bounds.LARGEST_FLOAT32:
            assert_right(multiply(x, q, of_weight, None, torch.float32), x, q, of_weight)


@pytest.mark.parametrize("layout", hostile.LAYOUTS)
def test_operands_may_have_any_layout_and_what_lies_beside_them_is_not_read(layout: str) -> None:
    x, q = drawn(5, 48, dtype=torch.bfloat16), codes(37, 48, E4M3)
    scale = hostile.laid_out(scale_of("row", 37, 48), layout)
    y = multiply(hostile.laid_out(x, layout), hostile.laid_out(q, layout), scale, drawn(74)[::2])
    assert_right(y, x, q, scale, drawn(74)[::2])


@pytest.mark.parametrize("k", [64, 192, 640])
def test_a_row_pitch_beyond_k_is_not_read(k: int) -> None:
    wide = torch.full((40, k + 64), 0x7F, dtype=torch.uint8).view(E4M3)
    wide[:, :k] = codes(40, k, E4M3)
    padded = torch.full((3, k + 64), float("nan")).bfloat16()
    padded[:, :k] = drawn(3, k)
    scale = scale_of("block", 40, k)
    y = multiply(padded[:, :k], wide[:, :k], scale)
    assert_right(y, padded[:, :k], wide[:, :k], scale)


def test_nothing_is_written_beside_the_result() -> None:
    storage = torch.full((3 * 33 + 64,), -7.0, device=DEVICE)
    out = storage[32:-32].view(3, 33)
    x, q = drawn(3, 50).to(DEVICE), codes(33, 50, E4M3).to(DEVICE)
    torch.ops.policyquant.fp8_weight_only_mm.out(x, q, ONE.to(DEVICE), None, out=out)
    assert_right(out.cpu(), x.cpu(), q.cpu(), ONE)
    assert bool((storage[:32] == -7).all())
    assert bool((storage[-32:] == -7).all())


def test_parts_of_k_are_added_in_the_same_order_every_time() -> None:
    x, q, scale = drawn(1, 4096, dtype=torch.bfloat16), codes(8, 4096, E4M3), scale_of("row", 8, 4096)
    results = [multiply(x, q, scale, None, torch.float32) for _ in range(2)]
    assert torch.equal(*results)
    assert_right(results[0], x, q, scale)


@pytest.mark.parametrize(("m", "n"), [(0, 5), (3, 0)])
def test_nothing_times_something_is_nothing(m: int, n: int) -> None:
    assert multiply(drawn(m, 8), codes(n, 8, E4M3), ONE).shape == (m, n)


def test_nan_and_infinity_stay_in_their_rows() -> None:
    x = torch.ones(4, 20)
    x[1, 3], x[2, 19] = float("nan"), float("inf")
    y = multiply(x.bfloat16(), torch.ones(18, 20).to(E4M3), ONE)
    assert y.isfinite().all(-1).tolist() == [True, False, False, True]
    assert y[0].tolist() == [20.0] * 18


@settings(max_examples=15)
@given(x=hostile.tensors(at_least=1), n=st.integers(1, 9), scale=hostile.scale_values, seed=st.integers(0, 2**32))
def test_hostile_activations(x: torch.Tensor, n: int, scale: float, seed: int) -> None:
    """Rows that hold NaN or infinity have no finite result; sums beyond the largest float32 may be infinite."""
    q, of_weight = codes(n, x.shape[1], E4M3, seed), torch.tensor([scale])
    y = multiply(x, q, of_weight, None, torch.float32)
    exact = reference.fp8_weight_only_mm(x, q, of_weight)
    sums = x.double().abs() @ reference.decode(q).abs().T
    finite = x.isfinite().all(-1, keepdim=True)
    sure = finite & (sums < error_bounds.LARGEST_FLOAT32 / 512)
    bound = error_bounds.product(sums * scale, x.shape[1], of_weight.double())
    error_bounds.assert_within(y[sure], exact[sure], bound.expand_as(y)[sure])
    assert not bool(y[~finite[:, 0]].isfinite().any())


def test_offsets_pass_32_bits() -> None:
    """The last row lies beyond 2**31 codes, its number and its stride do not; of what is between, none is touched."""
    step = 2**30 + 64
    storage = torch.empty(2 * step + 64, dtype=torch.uint8, device=DEVICE)
    q = storage.as_strided((3, 64), (step, 1)).view(E4M3)
    q[:] = codes(3, 64, E4M3).to(DEVICE)
    x = drawn(3, 64, dtype=torch.bfloat16).to(DEVICE)
    assert_right(ops.fp8_weight_only_mm(x, q, ONE.to(DEVICE)).cpu(), x.cpu(), codes(3, 64, E4M3), ONE)


def test_torch_knows_shapes_and_dtypes() -> None:
    for operator, q in (("fp8_weight_only_mm", codes(5, 8, E4M3)), ("int8_weight_only_mm", codes(5, 8, INT8))):
        given_ = (drawn(3, 8).to(DEVICE), q.to(DEVICE), ONE.to(DEVICE), None, torch.bfloat16)
        torch.library.opcheck(getattr(torch.ops.policyquant, operator).default, given_, test_utils=("test_faketensor",))


@pytest.mark.parametrize(
    ("x", "q", "scale", "message"),
    [
        (drawn(3, 7), codes(5, 8, E4M3), ONE, "x is \\[3, 7\\]"),
        (drawn(3, 8), codes(5, 8, E4M3), torch.ones(4, 1), "expected \\[1\\], \\[5, 1\\] or \\[1, 1\\]"),
        (drawn(3, 8), codes(5, 8, E4M3).float(), ONE, "q is torch.float32"),
    ],
)
def test_what_does_not_belong_together_is_refused(
    x: torch.Tensor, q: torch.Tensor, scale: torch.Tensor, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        multiply(x, q, scale)


@pytest.mark.parametrize(
    ("capability", "columns", "pitch", "bulk"),
    [
        ((9, 0), 256, 256, True),
        ((10, 0), 256, 272, True),
        ((8, 9), 256, 256, False),
        ((9, 0), 256, 264, False),
        ((9, 0), 1, 1, False),
    ],
)
def test_aligned_rows_are_copied_in_bulk_where_the_gpu_can(
    capability: tuple[int, int], columns: int, pitch: int, bulk: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target(capability, 132)
    monkeypatch.setattr(kernels, "target_of", lambda x: target)
    q = torch.empty(128, pitch, dtype=E4M3, device="meta")[:, :columns]
    x, out, scale = (torch.empty(*shape, device="meta") for shape in ((1, columns), (1, 128), (1,)))
    with recording(target) as launches:
        kernels.fp8_weight_only_mm(x, q, scale, None, out=out)
    assert launches[0].arguments["BULK"] is bulk
