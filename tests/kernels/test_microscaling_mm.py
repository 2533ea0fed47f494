"""Products with weights in MX and NVFP4: as exact as float32 sums of exact products, whichever kernel runs them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from policyquant.kernels import dispatch, ops, reference
from policyquant.kernels.triton import microscaling_mm as kernels
from policyquant.kernels.triton.launch import Target, recording
from tests.kernels import error_bounds, hostile
from tests.kernels.device import DEVICE

E4M3, E8M0 = torch.float8_e4m3fn, torch.float8_e8m0fnu
FORMATS = ("mxfp8", "mxfp4", "nvfp4")
SHAPES = [(1, 1, 2), (1, 33, 700), (3, 70, 144), (17, 64, 130), (70, 9, 34), (5, 40, 1600), (2, 3, 0), (0, 4, 64)]
pytestmark = pytest.mark.gpu


@pytest.fixture(params=["torch", "triton 9.0", "triton 10.0"], autouse=True)
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Plain torch, and the kernels as they are for a GPU without scaled products and for one with them."""
    name, _, capability = request.param.partition(" ")
    if capability == "10.0" and DEVICE == "cpu":
        monkeypatch.setattr(kernels, "target_of", lambda x: Target((10, 0), 4))
    with dispatch.force(name):
        yield request.param


def drawn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def weight(kind: str, n: int, k: int) -> tuple[torch.Tensor, ...]:
    """Codes and scales, and for NVFP4 the global scale, of rows of different sizes."""
    w = drawn(n, k, seed=1) * torch.logspace(-3, 3, n)[:, None]
    return tuple(getattr(reference, f"{kind}_quant")(w))


def moved(x: Any) -> Any:
    """The tensor on the device under test, with its strides, its offset and what lies beside it."""
    if not isinstance(x, torch.Tensor):
        return x
    storage = x.as_strided((x.untyped_storage().nbytes() // x.itemsize,), (1,), 0)
    return storage.to(DEVICE).as_strided(x.shape, x.stride(), x.storage_offset())


def multiply(operator: str, *operands: Any) -> torch.Tensor:
    result: torch.Tensor = getattr(ops, operator)(*(moved(each) for each in operands)).cpu()
    return result


def values_of(stored: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return reference.nvfp4_dequantize(*stored) if len(stored) == 3 else reference.mx_dequantize(*stored)


def assert_right(y: torch.Tensor, x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None) -> None:
    """Sums in float32 and one rounding; products are exact, and so are scales that are powers of two."""
    added = torch.zeros(w.shape[0]) if bias is None else bias
    exact = x.double() @ w.T + added.double()
    magnitude = x.double().abs() @ w.abs().T + added.double().abs()
    error_bounds.assert_within(y, exact, error_bounds.product(magnitude, x.shape[1]))


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_a_weight_only_product_is_that_with_the_decoded_weight(kind: str, m: int, n: int, k: int) -> None:
    x, bias = drawn(m, k, dtype=(torch.bfloat16, torch.float16)[(m + n) % 2]), drawn(n)
    stored = weight(kind, n, k)
    y = multiply(
        f"{kind.replace('mxfp8', 'mx').replace('mxfp4', 'mx')}_weight_only_mm", x, *stored, bias, torch.float32
    )
    assert (y.shape, y.dtype) == ((m, n), torch.float32)
    assert_right(y, x, values_of(stored), bias)


@pytest.mark.parametrize("kind", ["mxfp8", "mxfp4"])
@pytest.mark.parametrize(("m", "n", "k"), [*SHAPES, (130, 140, 260)])
def test_a_scaled_product_is_that_of_the_decoded_operands(kind: str, m: int, n: int, k: int) -> None:
    a, scale_a = reference.mxfp8_quant(drawn(m, k) * torch.logspace(-2, 2, m)[:, None])
    stored, bias = weight(kind, n, k), drawn(n)
    y = multiply("mx_scaled_mm", a, stored[0], scale_a, stored[1], bias, torch.float32)
    assert_right(y, reference.mx_dequantize(a, scale_a), values_of(stored), bias)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("x_dtype", hostile.FLOATS)
def test_any_activations_and_any_result(kind: str, x_dtype: torch.dtype) -> None:
    stored, x = weight(kind, 35, 96), drawn(3, 96, dtype=x_dtype)
    operator = "nvfp4_weight_only_mm" if kind == "nvfp4" else "mx_weight_only_mm"
    for out_dtype in hostile.FLOATS:
        y = multiply(operator, x, *stored, None, out_dtype)
        assert y.dtype == out_dtype
        assert_right(y, x, values_of(stored))
    assert multiply(operator, x, *stored).dtype == x_dtype


@pytest.mark.parametrize("x_dtype", hostile.FLOATS)
def test_every_code_is_decoded_exactly(x_dtype: torch.dtype) -> None:
    one, every = torch.ones(1, 2, dtype=x_dtype), torch.arange(256).to(torch.uint8)
    fp4 = torch.stack((every % 16, every * 0), -1)
    fp8 = torch.stack((every, every * 0), -1).view(E4M3)
    power = torch.full((256, 1), 127, dtype=torch.uint8)
    y = multiply("mx_weight_only_mm", one, reference.pack_fp4(fp4), power.view(E8M0), None, torch.float32)
    assert torch.equal(y[0].double(), reference.decode_elements(reference.pack_fp4(fp4))[:, 0])
    y = multiply("mx_weight_only_mm", one, fp8, power, None, torch.float32)
    finite = reference.decode(fp8)[:, 0].isfinite()
    assert torch.equal(y[0].double()[finite], reference.decode(fp8)[:, 0][finite])


@pytest.mark.parametrize("x_dtype", hostile.FLOATS)
def test_all_scales_of_nvfp4_times_all_codes_are_exact_in_every_dtype(x_dtype: torch.dtype) -> None:
    one, bytes_ = torch.ones(1, 2, dtype=x_dtype), torch.arange(127).to(torch.uint8)
    for code in range(16):
        q = torch.full((127, 1), code, dtype=torch.uint8)
        scale = bytes_[:, None].view(E4M3)
        y = multiply("nvfp4_weight_only_mm", one, q, scale, torch.tensor([0.5]), None, torch.float32)
        assert torch.equal(y[0].double(), reference.nvfp4_dequantize(q, scale, torch.tensor([0.5]))[:, 0])


@pytest.mark.parametrize("x_dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("exponent", [-110, -60, 60])
def test_scales_far_beyond_the_range_of_the_activations(x_dtype: torch.dtype, exponent: int) -> None:
    for kind in ("mxfp8", "mxfp4"):
        q, scale = getattr(reference, f"{kind}_quant")(drawn(9, 96) * 2.0**exponent)
        x = drawn(3, 96, dtype=x_dtype)
        assert_right(multiply("mx_weight_only_mm", x, q, scale, None, torch.float32), x, values_of((q, scale)))


@pytest.mark.parametrize("layout", hostile.LAYOUTS)
@pytest.mark.parametrize("kind", FORMATS)
def test_operands_may_have_any_layout_and_what_lies_beside_them_is_not_read(kind: str, layout: str) -> None:
    x, (q, scale, *rest) = drawn(5, 96, dtype=torch.bfloat16), weight(kind, 37, 96)
    laid = [hostile.laid_out(each, layout) for each in (x, q, scale)]
    operator = "nvfp4_weight_only_mm" if rest else "mx_weight_only_mm"
    y = multiply(operator, *laid, *rest, drawn(74)[::2])
    assert_right(y, x, values_of((q, scale, *rest)), drawn(74)[::2])
    if not rest:
        a, scale_a = reference.mxfp8_quant(x)
        y = multiply("mx_scaled_mm", hostile.laid_out(a, layout), laid[1], hostile.laid_out(scale_a, layout), laid[2])
        assert_right(y, reference.mx_dequantize(a, scale_a), values_of((q, scale)))


def test_a_nan_scale_makes_its_channel_nan_and_a_nan_activation_its_row() -> None:
    x = drawn(3, 64, dtype=torch.bfloat16)
    x[1, 40] = float("nan")
    w = drawn(5, 64)
    w[2, 3] = float("nan")
    expected = torch.zeros(3, 5, dtype=torch.bool)
    expected[1], expected[:, 2] = True, True
    for kind in ("mxfp4", "nvfp4"):
        stored = getattr(reference, f"{kind}_quant")(w)
        operator = "nvfp4_weight_only_mm" if kind == "nvfp4" else "mx_weight_only_mm"
        assert torch.equal(multiply(operator, x, *stored).isnan(), expected)
    a, scale_a = reference.mxfp8_quant(x)
    q, scale = reference.mxfp4_quant(w)
    assert torch.equal(multiply("mx_scaled_mm", a, q, scale_a, scale).isnan(), expected)


@settings(max_examples=15)
@given(x=hostile.tensors(at_least=2), n=st.integers(1, 9), kind=st.sampled_from(FORMATS))
def test_hostile_activations(x: torch.Tensor, n: int, kind: str) -> None:
    """Rows that hold NaN or infinity have no finite result; sums beyond the largest float32 may be infinite."""
    x = x[:, : x.shape[1] // 2 * 2]
    stored = getattr(reference, f"{kind}_quant")(drawn(n, x.shape[1]))
    y = multiply("nvfp4_weight_only_mm" if kind == "nvfp4" else "mx_weight_only_mm", x, *stored, None, torch.float32)
    w = values_of(stored)
    sums = x.double().abs() @ w.abs().T
    finite = x.isfinite().all(-1, keepdim=True)
    # Codes are up to 2**12 times their values.
    sure = finite & (x.double().abs().amax(-1, keepdim=True) < error_bounds.LARGEST_FLOAT32 / 2.0**16)
    bound = error_bounds.product(sums, x.shape[1], torch.tensor(2.0**12))
    error_bounds.assert_within(y[sure.expand_as(y)], (x.double() @ w.T)[sure.expand_as(y)], bound[sure.expand_as(y)])
    assert not bool(y[x.isnan().any(-1)].isfinite().any())


def test_nothing_is_written_beside_the_result() -> None:
    storage = torch.full((3 * 33 + 64,), -7.0, device=DEVICE)
    out = storage[32:-32].view(3, 33)
    x, stored = drawn(3, 64), weight("mxfp4", 33, 64)
    torch.ops.policyquant.mx_weight_only_mm.out(moved(x), *(moved(each) for each in stored), None, out=out)
    assert_right(out.cpu(), x, values_of(stored))
    assert bool((storage[:32] == -7).all())
    assert bool((storage[-32:] == -7).all())


def test_what_does_not_belong_together_is_refused() -> None:
    x = drawn(3, 64)
    q, scale = reference.mxfp4_quant(drawn(5, 64))
    with pytest.raises(ValueError, match=r"a product of \[3, 62\] with \[5, 64\]"):
        multiply("mx_weight_only_mm", x[:, :62], q, scale)
    with pytest.raises(ValueError, match=r"the bias is \[3\], expected \[5\]"):
        multiply("mx_weight_only_mm", x, q, scale, drawn(3))
    with pytest.raises(ValueError, match=r"are \[5, 4\] torch.float8_e4m3fn, found \[5, 2\] torch.float8_e8m0fnu"):
        multiply("nvfp4_weight_only_mm", x, q, scale, torch.ones(1))
    with pytest.raises(ValueError, match=r"mx_scaled_mm: activations are torch.uint8, expected torch.float8_e4m3fn"):
        multiply("mx_scaled_mm", q, q, scale, scale)


@pytest.mark.parametrize(("capability", "native"), [((8, 0), False), ((9, 0), False), ((10, 0), True)])
def test_scaled_products_are_native_where_the_gpu_has_them(
    capability: tuple[int, int], native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target(capability, 132)
    monkeypatch.setattr(kernels, "target_of", lambda x: target)
    a, b = (torch.empty(rows, 256, dtype=E4M3, device="meta") for rows in (300, 400))
    scales = [torch.empty(rows, 8, dtype=E8M0, device="meta") for rows in (300, 400)]
    with recording(target) as launches:
        kernels.mx_scaled_mm(a, b, *scales, None, out=torch.empty(300, 400, device="meta"))
    assert (launches[0].kernel is kernels._multiply_scaled) is native
