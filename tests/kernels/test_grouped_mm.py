"""Products with the weights of several experts: within the error of float32 sums and one rounding of the reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from policyquant.kernels import dispatch, ops, reference
from tests.kernels import error_bounds, hostile
from tests.kernels.device import DEVICE

IMPLEMENTATIONS = ("torch", "triton")
implementations = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
FP8 = torch.float8_e4m3fn
SCALES = ("tensor", "channel", "block", "block, one for a row", "block, one for all")


def codes(*shape: int, seed: int = 0, dtype: torch.dtype = FP8) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 20).to(dtype)


def positive(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) + 0.5


def scales(kind: str, rows: int, experts: int, channels: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    groups, blocks = -(-columns // 128), -(-channels // 128)
    of_b = {"tensor": (experts,), "channel": (experts, channels, 1)}.get(kind, (experts, blocks, groups))
    of_a = {"tensor": (1,), "block": (rows, groups), "block, one for all": (1,)}.get(kind, (rows, 1))
    return positive(*of_a, seed=3), positive(*of_b, seed=4)


def multiply(
    implementation: str,
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    ends: list[int],
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """The product, into an out full of NaN that lies between canaries."""
    offsets = torch.tensor(ends, dtype=torch.int32)
    size = a.shape[0] * b.shape[1]
    room = torch.full((size + 128,), torch.nan, dtype=out_dtype, device=DEVICE)
    out = room[64 : 64 + size].view(a.shape[0], b.shape[1])
    inputs = [each if each is None else each.to(DEVICE) for each in (a, b, scale_a, scale_b, offsets, bias)]
    with dispatch.force(implementation):
        torch.ops.policyquant.grouped_scaled_mm.out(*inputs, out=out)
    assert bool(room[:64].isnan().all())
    assert bool(room[64 + size :].isnan().all())
    return out.cpu()


def assert_right(
    y: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    ends: list[int],
    bias: torch.Tensor | None = None,
) -> None:
    offsets = torch.tensor(ends, dtype=torch.int32)
    exact = reference.grouped_scaled_mm(a, b, scale_a, scale_b, offsets, bias)
    magnitudes = (each.float().abs().to(each.dtype) for each in (a, b))
    magnitude = reference.grouped_scaled_mm(
        *magnitudes, scale_a, scale_b, offsets, None if bias is None else bias.abs()
    )
    error_bounds.assert_within(y, exact, error_bounds.product(magnitude, a.shape[1] + 2))


@pytest.mark.gpu
@implementations
@pytest.mark.parametrize("kind", SCALES)
@pytest.mark.parametrize(
    ("ends", "rows", "channels", "columns"),
    [
        ([3, 3, 8], 8, 20, 33),  # an expert without rows, nothing divisible
        ([0, 1, 1, 40], 43, 130, 257),  # rows behind the last expert's, two blocks and three groups
        ([150], 150, 16, 128),  # one expert, many rows
        ([0, 5, 5], 5, 1, 1),
        ([1], 1, 70, 64),
        ([0, 0], 3, 8, 16),  # nobody has rows
        ([0, 0], 0, 8, 16),
    ],
)
def test_each_expert_multiplies_its_own_rows(
    implementation: str, kind: str, ends: list[int], rows: int, channels: int, columns: int
) -> None:
    a, b = codes(rows, columns), codes(len(ends), channels, columns, seed=1)
    scale_a, scale_b = scales(kind, rows, len(ends), channels, columns)
    bias = positive(len(ends), channels, seed=5)
    y = multiply(implementation, a, b, scale_a, scale_b, ends, bias)
    assert_right(y, a, b, scale_a, scale_b, ends, bias)
    assert bool((y[ends[-1] :] == 0).all())


@pytest.mark.gpu
@pytest.mark.parametrize("size", [16, 32, 64, 128, 300])
@pytest.mark.parametrize("kind", ["channel", "block"])
def test_every_class_of_shapes_is_right(size: int, kind: str) -> None:
    ends = [size // 2, 2 * size - 3]
    rows = 2 * size
    a, b = codes(rows, 160), codes(2, 144, 160, seed=1)
    scale_a, scale_b = scales(kind, rows, 2, 144, 160)
    y = multiply("triton", a, b, scale_a, scale_b, ends, out_dtype=torch.bfloat16)
    assert_right(y, a, b, scale_a, scale_b, ends)


@pytest.mark.gpu
@implementations
def test_all_rows_may_be_of_one_expert_and_the_others_are_not_read(implementation: str) -> None:
    b = codes(4, 24, 40, seed=1)
    b.view(torch.uint8)[:2] = 0x7F
    b.view(torch.uint8)[3] = 0x7F
    a, (scale_a, scale_b) = codes(35, 40), scales("channel", 35, 4, 24, 40)
    ends = [0, 0, 35, 35]
    y = multiply(implementation, a, b, scale_a, scale_b, ends)
    assert bool(y.isfinite().all())
    b.view(torch.uint8)[[0, 1, 3]] = 0
    assert_right(y, a, b, scale_a, scale_b, ends)


@pytest.mark.gpu
@implementations
def test_a_nan_reaches_its_own_row_only(implementation: str) -> None:
    a, b = codes(6, 40), codes(2, 10, 40, seed=1)
    a.view(torch.uint8)[2, 39] = 0x7F
    y = multiply(implementation, a, b, torch.ones(1), torch.ones(2, 1), [3, 6])
    assert bool(y[2].isnan().all())
    assert bool(y[[0, 1, 3, 4, 5]].isfinite().all())


@pytest.mark.gpu
@implementations
@pytest.mark.parametrize("layout", hostile.LAYOUTS)
def test_operands_may_have_any_layout(implementation: str, layout: str) -> None:
    """What lies between the elements is NaN."""
    a, b = codes(6, 40), codes(2, 10, 40, seed=1)
    scale_a, scale_b = scales("channel", 6, 2, 10, 40)
    wide = hostile.laid_out(b.reshape(20, 40), layout)
    weight = wide.as_strided((2, 10, 40), (10 * wide.stride(0), *wide.stride()), wide.storage_offset())
    assert torch.equal(weight.float(), b.float())
    y = multiply(implementation, hostile.laid_out(a, layout), weight, scale_a, scale_b, [4, 6])
    assert_right(y, a, b, scale_a, scale_b, [4, 6])


@pytest.mark.gpu
def test_an_expert_lies_beyond_what_32_bits_count() -> None:
    """Its number and its stride do not. Only the last of three is touched, so the rest takes no memory."""
    channels, columns = 2, 16
    pitch = 2**30 + 64
    room = torch.empty(2 * pitch + channels * columns, dtype=torch.uint8, device=DEVICE).view(FP8)
    b = room.as_strided((3, channels, columns), (pitch, columns, 1))
    b[2] = codes(channels, columns, seed=1).to(DEVICE)
    a = codes(3, columns)
    y = multiply("triton", a, b, torch.ones(1), torch.ones(3), [0, 0, 3])
    assert_right(y, a, torch.stack([b[2].cpu()] * 3), torch.ones(1), torch.ones(3), [0, 0, 3])


@pytest.mark.gpu
@settings(max_examples=12)
@given(
    counts=st.lists(st.integers(0, 20), min_size=1, max_size=5),
    behind=st.integers(0, 3),
    channels=st.integers(1, 40),
    columns=st.integers(1, 150),
    kind=st.sampled_from(SCALES),
    dtype=st.sampled_from([FP8, torch.float8_e5m2]),
    out_dtype=st.sampled_from(hostile.FLOATS),
)
def test_products_are_right_for_any_shape(
    counts: list[int],
    behind: int,
    channels: int,
    columns: int,
    kind: str,
    dtype: torch.dtype,
    out_dtype: torch.dtype,
) -> None:
    ends = torch.tensor(counts).cumsum(0).tolist()
    rows = ends[-1] + behind
    a, b = codes(rows, columns, dtype=dtype), codes(len(ends), channels, columns, seed=1, dtype=dtype)
    scale_a, scale_b = scales(kind, rows, len(ends), channels, columns)
    for implementation in IMPLEMENTATIONS:
        y = multiply(implementation, a, b, scale_a, scale_b, ends, out_dtype=out_dtype)
        assert_right(y, a, b, scale_a, scale_b, ends)


def test_scales_of_groups_without_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match="goes with scale_b of blocks"):
        ops.grouped_scaled_mm(
            codes(2, 256), codes(1, 4, 256), torch.ones(2, 2), torch.ones(1), torch.tensor([2], dtype=torch.int32)
        )
