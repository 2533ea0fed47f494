"""Products of FP8 with FP8 by Triton's kernels, against the float64 reference."""

from __future__ import annotations

import pytest
import torch

from policyquant.kernels import dispatch, ops, reference
from policyquant.kernels.triton import scaled_mm as kernels
from tests.kernels import error_bounds, hostile
from tests.kernels.device import DEVICE

pytestmark = pytest.mark.gpu
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
NAN = 0x7F


def codes(rows: int, columns: int, dtype: torch.dtype = E4M3, seed: int = 0) -> torch.Tensor:
    """Any finite codes, every one as likely."""
    q = torch.randint(0, 256, (rows, columns), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    return torch.where(q.view(dtype).float().isfinite(), q, 0).view(dtype)


def uniform(*shape: int, seed: int = 0) -> torch.Tensor:
    """Scales between 2**-4 and 2**4."""
    return torch.exp2(torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * 8 - 4)


def block_scales(m: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    groups = -(-k // 128)
    return uniform(m, groups, seed=2), uniform(-(-n // 128), groups, seed=3)


def run(name: str, *inputs: torch.Tensor | None, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """By Triton, on the device; the result on the CPU."""
    a, b, scale_a, scale_b, bias, scale_result = (
        None if each is None else each.to(DEVICE) for each in (*inputs, *[None] * (6 - len(inputs)))
    )
    with dispatch.force(**{name: "triton"}):
        y: torch.Tensor = getattr(ops, name)(a, b, scale_a, scale_b, bias, dtype, scale_result)
    return y.cpu()


def magnitude(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """The sum of the magnitudes of all terms, [M, N]."""
    by_blocks = scale_b.numel() > 1 and scale_b.shape[0] != b.shape[0]
    exact = reference.block_scaled_mm if by_blocks else reference.scaled_mm
    absolute = reference.decode(a).abs(), reference.decode(b).abs()
    return exact(*absolute, scale_a, scale_b, None if bias is None else bias.abs())


def check(name: str, *inputs: torch.Tensor | None, dtype: torch.dtype = torch.float32) -> None:
    """Within float32 sums and one rounding; tensor cores keep 13 bits of each sum of 128."""
    a, b, scale_a, scale_b, *bias = inputs
    assert a is not None
    exact = getattr(reference, name)(a, b, scale_a, scale_b, *bias)
    absolute = reference.decode(a).abs(), reference.decode(b).abs(), scale_a, scale_b
    of_bias = [None if each is None else each.abs() for each in bias]
    total = getattr(reference, name)(*absolute, *of_bias)
    bound = error_bounds.product(total, a.shape[1])
    if DEVICE == "cuda":
        bound = bound + 4 * 2.0**-13 * total
    error_bounds.assert_within(run(name, *inputs, dtype=dtype), exact, bound)


# Shapes: rows for few and for many tokens, nothing divisible, K within a group, at its end, beyond it, split in parts.
SHAPES = [(0, 5, 7), (1, 1, 1), (3, 5, 130), (17, 33, 64), (1, 130, 1090), (70, 70, 200), (131, 129, 257), (2, 3, 0)]


@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
@pytest.mark.parametrize("by_row", [False, True], ids=["one scale", "a scale a row"])
def test_scaled_mm_multiplies_any_shape(m: int, n: int, k: int, by_row: bool) -> None:
    scale_a, scale_b = (uniform(m, 1), uniform(n, 1, seed=1)) if by_row else (uniform(1), uniform(1, seed=1))
    check("scaled_mm", codes(m, k), codes(n, k, seed=1), scale_a, scale_b)


@pytest.mark.parametrize(("m", "n", "k"), [*SHAPES, (2, 576, 640), (65, 130, 192)])
@pytest.mark.parametrize("columns", [False, True], ids=["row-major scales", "column-major scales"])
def test_block_scaled_mm_multiplies_any_shape(m: int, n: int, k: int, columns: bool) -> None:
    scale_a, scale_b = block_scales(m, n, k)
    check(
        "block_scaled_mm", codes(m, k), codes(n, k, seed=1), scale_a.T.contiguous().T if columns else scale_a, scale_b
    )


@pytest.mark.parametrize("one_of_a", [True, False], ids=["a's", "b's"])
def test_one_operand_may_have_one_scale_and_the_other_one_a_row(one_of_a: bool) -> None:
    scales = (uniform(1), uniform(7, 1)) if one_of_a else (uniform(5, 1), uniform(1))
    check("scaled_mm", codes(5, 33), codes(7, 33, seed=1), *scales)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("bias_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("k", [96, 1100], ids=["whole", "in parts"])
def test_a_bias_is_added_before_the_only_rounding(dtype: torch.dtype, bias_dtype: torch.dtype, k: int) -> None:
    a, b = codes(3, k), codes(9, k, seed=1)
    bias = torch.randn(18, generator=torch.Generator().manual_seed(0)).to(bias_dtype)[::2] * 1000
    check("scaled_mm", a, b, uniform(3, 1) * 1e-4, uniform(9, 1), bias, dtype=dtype)
    scale_a, scale_b = block_scales(3, 9, k)
    check("block_scaled_mm", a, b, scale_a * 1e-4, scale_b, bias, dtype=dtype)


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
@pytest.mark.parametrize("scale", [None, 0.5, 37.0])
@pytest.mark.parametrize("k", [96, 1100], ids=["whole", "in parts"])
def test_an_fp8_result_is_codes_of_the_sum_over_its_scale(dtype: torch.dtype, scale: float | None, k: int) -> None:
    a, b, scale_a, scale_b = codes(4, k), codes(9, k, seed=1), uniform(4, 1) * 1e-3, uniform(9, 1)
    scale_result = None if scale is None else torch.tensor([scale])
    q = run("scaled_mm", a, b, scale_a, scale_b, None, scale_result, dtype=dtype)
    exact = reference.scaled_mm(a, b, scale_a, scale_b)
    within = error_bounds.product(magnitude(a, b, scale_a, scale_b), k) + (
        4 * 2.0**-13 * magnitude(a, b, scale_a, scale_b) if DEVICE == "cuda" else 0.0
    )
    divisor = torch.tensor(1.0 if scale is None else scale)
    bound = within + error_bounds.encoding(exact.abs() + within, divisor, dtype)
    assert q.dtype == dtype
    assert bool(((reference.decode(q) * divisor - exact).abs() <= bound).all())


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_an_fp8_result_saturates_and_keeps_nan(dtype: torch.dtype) -> None:
    a = torch.tensor([[448.0], [-448.0], [1.0], [float("nan")]]).to(E4M3)
    b = torch.tensor([[448.0], [1.0]]).to(E4M3)
    for scale_result, scale_b in ((None, 1.0), (torch.tensor([1e-30]), 1.0), (torch.tensor([0.0]), 3e38)):
        given = a, b, torch.tensor([3e38]), torch.tensor([scale_b]), None, scale_result
        y = run("scaled_mm", *given, dtype=dtype).float()
        largest = torch.finfo(dtype).max
        assert y[:3].tolist() == [[largest] * 2, [-largest] * 2, [largest] * 2]
        assert bool(y[3].isnan().all())


@pytest.mark.parametrize("name", ["scaled_mm", "block_scaled_mm"])
@pytest.mark.parametrize("m", [4, 66])
def test_nan_and_infinity_stay_in_their_row(name: str, m: int) -> None:
    a = codes(m, 150, E5M2)
    a.view(torch.uint8)[1, 140], a.view(torch.uint8)[2, 3] = NAN, 0x7C
    b = torch.ones(5, 150).to(E5M2)
    scales = (uniform(1), uniform(1)) if name == "scaled_mm" else block_scales(m, 5, 150)
    y = run(name, a, b, *scales)
    assert bool(y[1].isnan().all())
    assert bool((y[2] == torch.inf).all())
    assert bool(y[[0, *range(3, m)]].isfinite().all())


@pytest.mark.parametrize("layout", hostile.LAYOUTS)
@pytest.mark.parametrize("m", [3, 66])
def test_operands_and_scales_may_have_any_layout_and_nothing_beside_them_is_read(layout: str, m: int) -> None:
    """What lies between and beside the rows is NaN."""
    a, b = hostile.laid_out(codes(m, 147), layout), hostile.laid_out(codes(20, 147, seed=1), layout)
    check("scaled_mm", a, b, hostile.laid_out(uniform(m, 1), layout), hostile.laid_out(uniform(20, 1), layout))
    scale_a, scale_b = (hostile.laid_out(each, layout) for each in block_scales(m, 20, 147))
    check("block_scaled_mm", a, b, scale_a, scale_b)


@pytest.mark.parametrize("dtype", [torch.bfloat16, E4M3])
@pytest.mark.parametrize(("m", "k"), [(3, 40), (3, 1100), (66, 40)])
def test_nothing_beside_the_result_is_written(dtype: torch.dtype, m: int, k: int) -> None:
    n = 37
    size = torch.empty(0, dtype=dtype).element_size()
    around = torch.full(((m * n + 2000) * size,), 0xA5, dtype=torch.uint8, device=DEVICE)
    out = around.view(dtype)[1000 : 1000 + m * n].view(m, n)
    inputs = codes(m, k).to(DEVICE), codes(n, k).to(DEVICE), uniform(m, 1).to(DEVICE), uniform(n, 1).to(DEVICE)
    kernels.scaled_mm(*inputs, None, None, out=out)
    assert bool((around[: 1000 * size] == 0xA5).all())
    assert bool((around[(1000 + m * n) * size :] == 0xA5).all())
    with dispatch.force("triton"):
        assert torch.equal(out.float(), ops.scaled_mm(*inputs, None, dtype).float())


@pytest.mark.parametrize("scale", [2.0**-126, 1e-30, 1e30])
def test_scales_of_blocks_are_multiplied_with_each_other_first(scale: float) -> None:
    a, b = codes(3, 256), codes(5, 256, seed=1)
    given = torch.full((3, 2), scale), torch.full((1, 2), 1 / scale)
    check("block_scaled_mm", a, b, *given)


def test_every_block_has_its_own_scale() -> None:
    """Ones, and scales that are all different: each result names the scales that it had."""
    a, b = torch.ones(2, 300).to(E4M3), torch.ones(260, 300).to(E4M3)
    scale_a, scale_b = torch.tensor([[1.0, 16.0, 256.0], [2.0, 32.0, 512.0]]), torch.arange(9.0).reshape(3, 3)
    y = run("block_scaled_mm", a, b, scale_a, scale_b)
    assert torch.equal(y.double(), reference.block_scaled_mm(a, b, scale_a, scale_b))


def test_a_product_is_the_same_every_time_and_whatever_stood_where_its_parts_go() -> None:
    given = codes(3, 1500), codes(66, 1500, seed=1), uniform(3, 1), uniform(66, 1)
    first = run("scaled_mm", *given)
    poison = [torch.full((16 * 3 * 66,), torch.nan, device=DEVICE) for _ in range(8)]
    del poison
    assert torch.equal(first, run("scaled_mm", *given))


def test_fast_accumulation_computes_the_same_sums() -> None:
    given = [each.to(DEVICE) for each in (codes(3, 200), codes(70, 200, seed=1), uniform(3, 1), uniform(70, 1))]
    with dispatch.force(scaled_mm="triton_fast_accum"):
        y = ops.scaled_mm(*given, None, torch.float32).cpu()
    cpu = [each.cpu() for each in given]
    bound = error_bounds.product(magnitude(*cpu), 200) + (0.0 if DEVICE == "cpu" else 8 * 2.0**-13 * magnitude(*cpu))
    error_bounds.assert_within(y, reference.scaled_mm(*cpu), bound)


def test_a_long_sum_passes_the_accumulation_gate() -> None:
    """Sums of 14 bits, which a missing promotion leaves, are off by 1.3e-2 here."""
    random = torch.Generator().manual_seed(0)
    a, b = (torch.randn(rows, 16384, generator=random).to(E4M3) for rows in (4, 64))
    one = torch.ones(1)
    y, exact = run("scaled_mm", a, b, one, one, dtype=torch.bfloat16).double(), reference.scaled_mm(a, b, one, one)
    assert float((y - exact).norm() / exact.norm()) <= 2.5e-3


def test_offsets_pass_2_to_the_31() -> None:
    """Rows 2**30 bytes apart, after what an offset of 32 bits would lead to. Untouched memory costs nothing."""
    apart, m, k = 2**30, 4, 40
    wide = torch.empty(2 * apart + (m - 1) * apart + k, dtype=torch.uint8, device=DEVICE).view(E4M3)
    a = wide.as_strided((m, k), (apart, 1), 2 * apart)
    a.copy_(codes(m, k).to(DEVICE))
    small, scales = codes(5, k, seed=1).to(DEVICE), (torch.ones(1, device=DEVICE), torch.ones(1, device=DEVICE))
    with dispatch.force(scaled_mm="triton"):
        as_rows = ops.scaled_mm(a, small, *scales, None, torch.float32)
        as_channels = ops.scaled_mm(small, a, *scales, None, torch.float32)
        expected = ops.scaled_mm(a.contiguous(), small, *scales, None, torch.float32)
    assert torch.equal(as_rows, expected)
    assert torch.equal(as_channels, expected.T)
