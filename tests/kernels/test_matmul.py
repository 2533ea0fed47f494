"""Products with 8-bit weights."""

from __future__ import annotations

import pytest
import torch

from policyquant.kernels import ops, reference
from policyquant.kernels.cpu import scaled_mm as matmul
from tests.kernels import error_bounds


@pytest.mark.parametrize(("m", "n", "k"), [(3, 5, 7), (0, 4, 8), (2, 3, 1), (4, 64, 96)])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_scaled_mm(m: int, n: int, k: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "TILE_ELEMENTS", 3 * k)  # several tiles, the last one ragged
    random = torch.Generator().manual_seed(0)
    a, scale_a = ops.per_token_scaled_fp8_quant(torch.randn(m, k, generator=random), dtype=dtype)
    b, scale_b = ops.per_token_scaled_fp8_quant(torch.randn(n, k, generator=random), dtype=dtype)
    bias = torch.randn(n, generator=random)
    y = ops.scaled_mm(a, b, scale_a, scale_b, bias, torch.float32)
    expected = reference.scaled_mm(a, b, scale_a, scale_b, bias)
    # k + 4 float32 roundings, each of at most the sum of magnitudes.
    bound = (k + 4) * 2**-24 * reference.scaled_mm(a.double().abs(), b.double().abs(), scale_a, scale_b, bias.abs())
    assert bool(((y - expected).abs() <= bound).all())


def test_scaled_mm_decodes_every_finite_weight_code_exactly() -> None:
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(torch.float8_e4m3fn)
    finite = codes.view(torch.uint8)[codes.float().isfinite()].view(torch.float8_e4m3fn)[:, None]
    one = torch.ones(1)
    y = ops.scaled_mm(torch.ones(1, 1).to(torch.float8_e4m3fn), finite, one, one, out_dtype=torch.float32)
    assert torch.equal(y[0], finite[:, 0].float())


def test_a_nan_activation_reaches_its_own_row_only() -> None:
    a = torch.tensor([[float("nan"), 1.0], [1.0, 1.0]]).to(torch.float8_e4m3fn)
    b, one = torch.ones(3, 2).to(torch.float8_e4m3fn), torch.ones(1)
    y = ops.scaled_mm(a, b, one, one)
    assert y.isnan().all(-1).tolist() == [True, False]
    assert y[1].tolist() == [2, 2, 2]


def test_int8_weight_only_mm() -> None:
    x = torch.randint(-8, 8, (3, 7), generator=torch.Generator().manual_seed(0)).float()
    q = torch.randint(-127, 128, (5, 7), generator=torch.Generator().manual_seed(1)).to(torch.int8)
    scale = torch.tensor([[0.5], [1], [2], [4], [8]])
    # Small integers and powers of two: exact in float32.
    expected = reference.scaled_mm(x, q, torch.ones(1), scale).float()
    assert torch.equal(ops.int8_weight_only_mm(x, q, scale), expected)


@pytest.mark.parametrize(("m", "n", "k"), [(3, 5, 7), (0, 4, 8), (2, 3, 0), (2, 300, 1), (4, 130, 300)])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_block_scaled_mm(m: int, n: int, k: int, dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(0)
    a, b = (torch.randn(rows, k, generator=random).to(dtype) for rows in (m, n))
    groups = -(-k // 128)
    scale_a, scale_b = (torch.rand(rows, groups, generator=random) for rows in (m, -(-n // 128)))
    bias = torch.randn(n, generator=random)
    y = ops.block_scaled_mm(a, b, scale_a, scale_b, bias, torch.float32)
    expected = reference.block_scaled_mm(a, b, scale_a, scale_b, bias)
    magnitude = reference.block_scaled_mm(a.double().abs(), b.double().abs(), scale_a, scale_b, bias.abs())
    assert bool(((y - expected).abs() <= error_bounds.product(magnitude, k)).all())


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_a_product_may_end_in_codes_of_itself_over_a_scale(dtype: torch.dtype) -> None:
    a = torch.tensor([[1.0, 2.0], [448.0, 448.0], [float("nan"), 0.0]]).to(torch.float8_e4m3fn)
    b, one = torch.tensor([[2.0, 1.0], [-448.0, -448.0]]).to(torch.float8_e4m3fn), torch.ones(1)
    y = ops.scaled_mm(a, b, one, one, out_dtype=dtype, scale_result=torch.tensor([0.5])).float()
    largest = torch.finfo(dtype).max
    # -1344 / 0.5, and 1344 / 0.5, are within E5M2's range only.
    assert y[0].tolist() == [8.0, max(-2560.0, -largest)]
    assert y[1].tolist() == [min(2560.0, largest), -largest]
    assert bool(y[2].isnan().all())


@pytest.mark.parametrize("scale_b", [torch.ones(1), torch.ones(2, 2)], ids=["a scale", "blocks"])
def test_products_are_compiled_without_a_break(scale_b: torch.Tensor) -> None:
    a, b = torch.ones(3, 200).to(torch.float8_e4m3fn), torch.ones(130, 200).to(torch.float8_e4m3fn)
    scale_a = torch.ones(1) if scale_b.numel() == 1 else torch.ones(3, 2)
    compiled = torch.compile(ops.scaled_mm, backend="eager", fullgraph=True)
    assert torch.equal(compiled(a, b, scale_a, scale_b), ops.scaled_mm(a, b, scale_a, scale_b))
