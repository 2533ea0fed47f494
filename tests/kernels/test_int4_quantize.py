"""Encoding of weights to 4 bits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from policyquant.kernels import dispatch, int4_layout, ops, reference
from policyquant.kernels.reference.int4_quantize import unpacked
from tests.kernels import error_bounds, hostile
from tests.kernels.device import DEVICE

BOTH = ("int4_group_quant", "asymmetric_int4_group_quant")
GROUPS = (32, 64, 128)
SCALES = (torch.float32, torch.bfloat16)
pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", params=["torch", "triton"], autouse=True)
def implementation(request: pytest.FixtureRequest) -> Iterator[None]:
    """Everything here runs by each, and each gives the same codes."""
    with dispatch.force(request.param):
        yield


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def encoded(name: str, w: torch.Tensor, group_size: int, scale_dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    made: tuple[torch.Tensor, ...] = getattr(ops, name)(w.to(DEVICE), group_size, scale_dtype)
    return tuple(each.cpu() for each in made)


def assert_as_reference(name: str, w: torch.Tensor, group_size: int, scale_dtype: torch.dtype = torch.float32) -> None:
    """To the bit."""
    expected = getattr(reference, name)(w, group_size, scale_dtype)
    for found, wanted in zip(encoded(name, w, group_size, scale_dtype), expected, strict=True):
        assert found.is_contiguous()
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("name", BOTH)
@given(w=hostile.tensors(), group_size=st.sampled_from(GROUPS), scale_dtype=st.sampled_from(SCALES), data=st.data())
@settings(max_examples=15)
def test_codes_scales_and_zero_points_are_those_of_the_reference(
    name: str, w: torch.Tensor, group_size: int, scale_dtype: torch.dtype, data: st.DataObject
) -> None:
    """Hostile values at the end of a group, over its edge, and in a last one that is short."""
    before = data.draw(st.sampled_from([0, group_size - 3, group_size]))
    w = torch.cat((drawn(w.shape[0], before).to(w.dtype), w), dim=-1)
    assert_as_reference(name, w, group_size, scale_dtype)


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("group_size", GROUPS)
@pytest.mark.parametrize("shape", [(1,), (0, 64), (3, 0), (2, 1), (5, 33), (7, 130), (2, 3, 96), (2, 1, 2, 257)])
def test_every_shape(name: str, group_size: int, shape: tuple[int, ...]) -> None:
    w = drawn(*shape)
    assert_as_reference(name, w, group_size)
    packed, scale, *_ = encoded(name, w, group_size, torch.float32)
    assert packed.shape == (*shape[:-1], -(-shape[-1] // 2))
    assert scale.shape == (*shape[:-1], -(-shape[-1] // group_size))


@pytest.mark.parametrize("layout", hostile.LAYOUTS)
@pytest.mark.parametrize("name", BOTH)
def test_weights_may_lie_in_any_way(name: str, layout: str) -> None:
    assert_as_reference(name, hostile.laid_out(drawn(7, 130).bfloat16(), layout), 32)


def test_codes_go_from_0_for_minus_8_to_15_for_7() -> None:
    w = torch.zeros(1, 32)
    w[0, :5] = torch.tensor([-7.5, 7.5, 1.0, -1.0, 0.5])
    packed, scale = encoded("int4_group_quant", w, 32, torch.float32)
    assert scale.tolist() == [[1.0]]
    assert int4_layout.unpack(packed, 32)[0, :6].tolist() == [0, 15, 9, 7, 8, 8]


def test_with_a_zero_point_all_codes_are_used_and_zero_is_exact() -> None:
    w = torch.zeros(3, 32)
    w[0, :3] = torch.tensor([-5.0, 10.0, 1.0])
    w[1, :] = torch.linspace(3.0, 30.0, 32)
    w[2, :] = -30.0
    packed, scale, zero_point = encoded("asymmetric_int4_group_quant", w, 32, torch.float32)
    assert scale.flatten().tolist() == [1.0, 2.0, 2.0]
    assert zero_point.flatten().tolist() == [5, 0, 15]
    codes = int4_layout.unpack(packed, 32)
    assert codes[0, :4].tolist() == [0, 15, 6, 5]
    assert codes[1, [0, -1]].tolist() == [2, 15]
    assert codes[2].unique().tolist() == [0]


def test_a_width_beyond_float32_saturates() -> None:
    w = torch.tensor([[3e38, -3e38, 0.0, 1e38]])
    assert_as_reference("asymmetric_int4_group_quant", w, 32)
    assert bool(encoded("asymmetric_int4_group_quant", w, 32, torch.float32)[1].isfinite().all())


@pytest.mark.parametrize("name", BOTH)
def test_the_scale_is_rounded_before_codes_are_made_with_it(name: str) -> None:
    w = drawn(40, 64)
    packed, scale, *zero_point = encoded(name, w, 64, torch.bfloat16)
    zero = zero_point[0].double() if zero_point else 8.0
    quotients = (w.double() / scale.double()).float().double()
    expected = ((quotients + zero - 8).float().round().clamp(-8, 7) + 8).to(torch.uint8)
    assert torch.equal(int4_layout.unpack(packed, 64), expected)


@pytest.mark.parametrize("name", BOTH)
@given(w=hostile.tensors(at_least=1), scale_dtype=st.sampled_from(SCALES))
@settings(max_examples=15)
def test_each_element_errs_by_half_a_step_or_by_what_the_rounded_scale_leaves_out(
    name: str, w: torch.Tensor, scale_dtype: torch.dtype
) -> None:
    packed, scale, *zero_point = encoded(name, w, 32, scale_dtype)
    zero = zero_point[0].double() if zero_point else 8.0
    wide = scale.double()
    values = (unpacked(packed, w.shape[1]).double() - zero) * wide
    # A zero point is rounded by half a step too; a scale in bfloat16 by 2**-9 of itself, 15 times.
    step = 0.5 + 15 * 2.0**-8 + (0.5 if zero_point else 0.0)
    width = torch.where(w.isfinite(), w, 0).double()
    fits = w.isfinite() & (width.amax(-1, keepdim=True) - width.amin(-1, keepdim=True) < error_bounds.LARGEST_FLOAT32)
    assert bool(((values - w.double()).abs() <= wide * step)[fits].all())


@pytest.mark.parametrize("name", BOTH)
def test_nan_is_zero_and_infinity_saturates_and_neither_reaches_others(name: str) -> None:
    w = drawn(3, 64)
    w[1, 5:9] = 0.0
    expected = encoded(name, w, 32, torch.float32)
    w[1, 5], w[1, 6], w[1, 7] = float("nan"), float("inf"), -float("inf")
    packed, *others = encoded(name, w, 32, torch.float32)
    assert all(torch.equal(found, wanted) for found, wanted in zip(others, expected[1:], strict=True))
    codes, without = int4_layout.unpack(packed, 64), int4_layout.unpack(expected[0], 64)
    assert codes[1, 5:9].tolist() == [without[1, 8].item(), 15, 0, without[1, 8].item()]
    codes[1, 6:8] = without[1, 6:8]
    assert torch.equal(codes, without)


def test_nothing_is_written_beside_the_results() -> None:
    w = drawn(3, 37).to(DEVICE)
    packed = torch.full((5, 19), 0x55, dtype=torch.uint8, device=DEVICE)
    scale = torch.full((5, 2), -1.0, device=DEVICE)
    zero_point = torch.full((5, 2), 99, dtype=torch.uint8, device=DEVICE)
    own = {"out": packed[1:4], "out_scale": scale[1:4], "out_zero_point": zero_point[1:4]}
    torch.ops.policyquant.asymmetric_int4_group_quant.out(w, 32, torch.float32, **own)
    for found, wanted in zip(own.values(), reference.asymmetric_int4_group_quant(w.cpu(), 32), strict=True):
        assert torch.equal(found.cpu(), wanted)
    for each, before in ((packed, 0x55), (scale, -1.0), (zero_point, 99)):
        assert bool((each[[0, 4]] == before).all())


def test_elements_beyond_two_to_the_31st_are_reached() -> None:
    pitch = 2**30 + 64
    base = torch.empty(2 * pitch + 128, dtype=torch.bfloat16, device=DEVICE)
    w = base.as_strided((3, 128), (pitch, 1))
    w.copy_(drawn(3, 128))
    for found, wanted in zip(ops.int4_group_quant(w, 32), reference.int4_group_quant(w.cpu(), 32), strict=True):
        assert torch.equal(found.cpu(), wanted)


@pytest.mark.parametrize(
    ("w", "group_size", "scale_dtype", "message"),
    [
        (torch.ones(3, 4), 16, torch.float32, "group_size is one of 32, 64, 128; found 16"),
        (torch.ones(3, 4), 32, torch.float16, "float32 or bfloat16, found torch.float16"),
        (torch.ones(()), 32, torch.float32, "at least one dimension"),
    ],
)
def test_other_groups_and_scales_are_refused(
    w: torch.Tensor, group_size: int, scale_dtype: torch.dtype, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        encoded("int4_group_quant", w, group_size, scale_dtype)


@pytest.mark.slow
@pytest.mark.parametrize("group_size", GROUPS)
@pytest.mark.parametrize("name", BOTH)
def test_codes_scales_and_zero_points_are_those_of_compressed_tensors(name: str, group_size: int) -> None:
    """As its compressor writes them, of float32 weights."""
    base = pytest.importorskip("compressed_tensors.compressors.base")
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    w = drawn(48, 4 * group_size) * torch.rand(48, 1, generator=torch.Generator().manual_seed(1))
    w[3, :group_size] = w[3, :group_size].abs()
    symmetric = name == "int4_group_quant"
    args = QuantizationArgs(num_bits=4, type="int", strategy="group", group_size=group_size, symmetric=symmetric)
    lowest, highest = w.unflatten(-1, (-1, group_size)).aminmax(dim=-1)
    scale, zero = calculate_qparams(lowest, highest, args)
    state = {"weight": w, "weight_scale": scale, **({} if symmetric else {"weight_zero_point": zero})}
    compressor = base.BaseCompressor.get_value_from_registry("pack-quantized")
    written = compressor.compress(state, QuantizationScheme(targets=["Linear"], weights=args))
    packed, own_scale, *zero_point = encoded(name, w, group_size, torch.float32)
    assert torch.equal(int4_layout.to_int32(packed), written["weight_packed"])
    assert torch.equal(own_scale, written["weight_scale"])
    if zero_point:
        assert torch.equal(int4_layout.zero_points_to_int32(zero_point[0]), written["weight_zero_point"])
