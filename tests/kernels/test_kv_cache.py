"""An FP8 cache of keys and values: what is written to its slots, what is left alone, and what is read."""

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

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
E4M3 = FP8[0]
CANARY = 0x55
pytestmark = pytest.mark.gpu


@pytest.fixture(params=["torch", "triton", "cuda"], autouse=True)
def implementation(request: pytest.FixtureRequest) -> Iterator[str]:
    with dispatch.force(request.param):
        yield request.param


def empty(*shape: int, dtype: torch.dtype = E4M3, heads_first: bool = False) -> torch.Tensor:
    """A cache [blocks, block size, heads, head size] full of canaries, stored position by position or head by head."""
    blocks, positions, heads, columns = shape
    stored = (blocks, heads, positions, columns) if heads_first else shape
    cache = torch.full(stored, CANARY, dtype=torch.uint8, device=DEVICE).view(dtype)
    return cache.transpose(1, 2) if heads_first else cache


def bits(cache: torch.Tensor) -> torch.Tensor:
    return cache.view(torch.uint8).cpu()


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16().to(DEVICE)


def on_device(*values: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device=DEVICE)


def slots_of(*values: int) -> torch.Tensor:
    return on_device(*values, dtype=torch.int64)


def written_by_the_reference(
    key: torch.Tensor, value: torch.Tensor, caches: list[torch.Tensor], slots: torch.Tensor, *scales: torch.Tensor
) -> list[torch.Tensor]:
    copies = [each.cpu().clone() for each in caches]
    reference.reshape_and_cache_fp8(key.cpu(), value.cpu(), *copies, slots.cpu(), *(scale.cpu() for scale in scales))
    return [bits(each) for each in copies]


@pytest.mark.parametrize("dtype", FP8)
@pytest.mark.parametrize("heads_first", [False, True], ids=["NHD", "HND"])
@pytest.mark.parametrize(
    ("tokens", "heads", "columns"), [(3, 2, 16), (1, 1, 1), (5, 3, 7), (9, 8, 128), (0, 2, 16), (70, 2, 8)]
)
def test_slots_hold_the_codes_of_the_reference(
    dtype: torch.dtype, heads_first: bool, tokens: int, heads: int, columns: int
) -> None:
    key, value = drawn(tokens, heads, columns), drawn(tokens, heads, columns, seed=1)
    caches = [empty(20, 4, heads, columns, dtype=dtype, heads_first=heads_first) for _ in range(2)]
    slots = torch.randperm(80, generator=torch.Generator().manual_seed(0))[:tokens].to(DEVICE)
    scales = on_device(0.25), on_device(0.5)
    expected = written_by_the_reference(key, value, caches, slots, *scales)
    ops.reshape_and_cache_fp8(key, value, *caches, slots, *scales)
    for cache, codes in zip(caches, expected, strict=True):
        assert torch.equal(bits(cache), codes)


@pytest.mark.parametrize("dtype", hostile.FLOATS)
@pytest.mark.parametrize("sizes", [(32, 16), (16, 48), (5, 16)])
def test_heads_of_values_may_have_another_size_than_those_of_keys(dtype: torch.dtype, sizes: tuple[int, int]) -> None:
    key, value = (drawn(6, 3, size, seed=size).to(dtype) for size in sizes)
    caches = [empty(3, 5, 3, size) for size in sizes]
    slots, scales = slots_of(14, 2, -1, 0, 9, 15), (on_device(0.3), on_device(0.2, 0.4, 0.6))
    expected = written_by_the_reference(key, value, caches, slots, *scales)
    ops.reshape_and_cache_fp8(key, value, *caches, slots, *scales)
    assert all(torch.equal(bits(cache), codes) for cache, codes in zip(caches, expected, strict=True))


def test_the_implementation_that_is_forced_writes_and_reads(implementation: str) -> None:
    dispatch.launches.clear()
    caches, one = [empty(2, 4, 2, 16), empty(2, 4, 2, 16)], on_device(1.0)
    ops.reshape_and_cache_fp8(drawn(1, 2, 16), drawn(1, 2, 16), *caches, slots_of(3), one, one)
    ops.gather_cache_fp8(caches[0], slots_of(3), one)
    assert dispatch.launches == {
        ("reshape_and_cache_fp8", implementation): 1,
        ("gather_cache_fp8", implementation): 1,
    }


def test_what_is_stored_is_x_divided_by_its_own_scale() -> None:
    key, value = torch.ones(2, 1, 4, device=DEVICE), torch.full((2, 1, 4), 3.0, device=DEVICE)
    caches = [empty(2, 4, 1, 4), empty(2, 4, 1, 4)]
    ops.reshape_and_cache_fp8(key, value, *caches, slots_of(-1, 5), on_device(0.25), on_device(0.5))
    assert caches[0][1, 1, 0].float().tolist() == [4.0] * 4
    assert caches[1][1, 1, 0].float().tolist() == [6.0] * 4
    for cache in caches:
        untouched = bits(cache).reshape(8, 4)[[0, 1, 2, 3, 4, 6, 7]]
        assert bool((untouched == CANARY).all())


def test_each_head_can_have_a_scale() -> None:
    key = drawn(3, 4, 16)
    caches, slots = [empty(2, 4, 4, 16), empty(2, 4, 4, 16)], slots_of(7, 0, 3)
    scales = on_device(0.25, 0.5, 2.0, 1e-3), on_device(1.0, 3.0, 0.1, 7.0)
    expected = written_by_the_reference(key, key, caches, slots, *scales)
    ops.reshape_and_cache_fp8(key, key, *caches, slots, *scales)
    assert all(torch.equal(bits(cache), codes) for cache, codes in zip(caches, expected, strict=True))
    read = ops.gather_cache_fp8(caches[0], slots, scales[0], torch.float32)
    exact = reference.gather_cache_fp8(caches[0].cpu(), slots.cpu(), scales[0].cpu())
    assert torch.equal(read.cpu(), exact.float())


@pytest.mark.parametrize("slots", [(-1, -1), (8, 5), (-9, 100), (5, 2**40)])
def test_slots_that_are_not_there_are_skipped(slots: tuple[int, int]) -> None:
    key = drawn(2, 2, 8)
    caches, at, one = [empty(2, 4, 2, 8), empty(2, 4, 2, 8)], slots_of(*slots), on_device(1.0)
    expected = written_by_the_reference(key, key, caches, at, one, one)
    ops.reshape_and_cache_fp8(key, key, *caches, at, one, one)
    assert torch.equal(bits(caches[0]), expected[0])
    assert torch.equal(bits(caches[1]), expected[1])


def test_a_cache_without_blocks_takes_nothing() -> None:
    caches = [empty(0, 4, 2, 8), empty(0, 4, 2, 8)]
    ops.reshape_and_cache_fp8(drawn(1, 2, 8), drawn(1, 2, 8), *caches, slots_of(0), on_device(1.0), on_device(1.0))
    assert ops.gather_cache_fp8(caches[0], slots_of(0), on_device(1.0)).float().abs().max() == 0


@pytest.mark.parametrize("heads_first", [False, True], ids=["NHD", "HND"])
def test_keys_and_values_may_be_slices_of_one_projection(heads_first: bool) -> None:
    projected = drawn(5, (4 + 2 + 2) * 16)
    key, value = (projected[:, start : start + 32].unflatten(1, (2, 16)) for start in (64, 96))
    padded = [empty(3, 4, 2, 24, heads_first=heads_first) for _ in range(2)]
    caches = [each[..., 3:19] for each in padded]
    slots, scale = slots_of(0, 11, 4, -1, 7, 99)[::1][:5], on_device(0.1)
    expected = written_by_the_reference(key, value, caches, slots, scale, scale)
    ops.reshape_and_cache_fp8(key, value, *caches, slots, scale, scale)
    for cache, wide, codes in zip(caches, padded, expected, strict=True):
        assert torch.equal(bits(cache), codes)
        outside = bits(wide)[..., [*range(3), *range(19, 24)]]
        assert bool((outside == CANARY).all())


@pytest.mark.parametrize("columns", [7, 16])
def test_columns_need_not_be_neighbours(columns: int) -> None:
    key, value = (drawn(5, 2, 2 * columns, seed=seed)[..., ::2] for seed in range(2))
    wide = [empty(3, 4, 2, 3 * columns) for _ in range(2)]
    caches = [each[..., ::3] for each in wide]
    slots, scale = slots_of(0, 11, 4, -1, 7), on_device(0.1)
    expected = written_by_the_reference(key, value, caches, slots, scale, scale)
    ops.reshape_and_cache_fp8(key, value, *caches, slots, scale, scale)
    for cache, whole, codes in zip(caches, wide, expected, strict=True):
        assert torch.equal(bits(cache), codes)
        assert bool((bits(whole)[..., 1::3] == CANARY).all())
    read = ops.gather_cache_fp8(caches[0], slots, scale, torch.float32)
    exact = reference.gather_cache_fp8(caches[0].cpu(), slots.cpu(), scale.cpu())
    assert torch.equal(read.cpu(), exact.float())


def test_of_two_tokens_for_one_slot_each_head_keeps_one() -> None:
    key = torch.tensor([1.0, 2.0], device=DEVICE)[:, None, None].expand(2, 2, 4)
    caches = [empty(1, 2, 2, 4), empty(1, 2, 2, 4)]
    ops.reshape_and_cache_fp8(key, key, *caches, slots_of(1, 1), on_device(1.0), on_device(1.0))
    for head in range(2):
        assert caches[0][0, 1, head].float().tolist() in ([1.0] * 4, [2.0] * 4)
    assert bool((bits(caches[0])[0, 0] == CANARY).all())


@pytest.mark.parametrize("dtype", FP8)
@settings(max_examples=15)
@given(x=hostile.tensors(at_least=1), scale=hostile.scale_values | st.sampled_from([0.0, 1e-40]))
def test_every_value_is_encoded_as_the_static_quantizer_does(dtype: torch.dtype, x: torch.Tensor, scale: float) -> None:
    """NaN stays NaN, ±inf saturates, and a scale below 2**-126 is read as that."""
    key = x[:, None].to(DEVICE)
    caches = [empty(1, 4, *key.shape[1:], dtype=dtype) for _ in range(2)]
    ops.reshape_and_cache_fp8(
        key, key, *caches, torch.arange(key.shape[0], device=DEVICE), on_device(scale), on_device(scale)
    )
    expected = reference.static_scaled_fp8_quant(x, torch.tensor([max(scale, 2.0**-126)]), dtype)
    found, nan = caches[1][0, : key.shape[0], 0].cpu(), reference.decode(expected).isnan()
    assert bool(((found.view(torch.uint8) == expected.view(torch.uint8)) | nan).all())
    assert torch.equal(reference.decode(found).isnan(), nan)


@pytest.mark.parametrize("dtype", FP8)
@pytest.mark.parametrize("out_dtype", hostile.FLOATS)
def test_every_code_is_read_as_its_value_times_the_scale(dtype: torch.dtype, out_dtype: torch.dtype) -> None:
    cache = torch.arange(256).to(torch.uint8).view(dtype).reshape(2, 4, 2, 16).to(DEVICE)
    slots, scale = torch.arange(8, device=DEVICE), on_device(0.37)
    read = ops.gather_cache_fp8(cache, slots, scale, out_dtype).cpu()
    exact = reference.gather_cache_fp8(cache.cpu(), slots.cpu(), scale.cpu())
    assert torch.equal(read.isnan(), exact.isnan())
    finite = exact.isfinite()
    error_bounds.assert_within(read[finite], exact[finite], exact[finite].abs() * error_bounds.U)


def test_slots_of_a_block_table_are_read_in_its_shape_and_zeros_where_there_is_none() -> None:
    cache = drawn(3, 4, 2, 8).to(E4M3)
    table = slots_of(2, 0, -1).reshape(1, 3)
    slots = (table[:, :, None] * 4 + torch.arange(4, device=DEVICE)).reshape(1, 12)
    read = ops.gather_cache_fp8(cache, slots, on_device(2.0), torch.float32)
    assert read.shape == (1, 12, 2, 8)
    assert torch.equal(read[0, :4], cache[2].float() * 2)
    assert torch.equal(read[0, 4:8], cache[0].float() * 2)
    assert not bool(read[0, 8:].any())


@pytest.mark.parametrize("columns", [8, 16])
def test_slots_may_have_any_layout(columns: int) -> None:
    cache = drawn(3, 4, 2, columns).to(E4M3)
    slots = torch.arange(48, device=DEVICE).reshape(4, 3, 4) % 14
    for each in (slots[:, 1, ::2], slots[0].T, slots.transpose(0, 2), slots[1, 1, 1]):
        read = ops.gather_cache_fp8(cache, each, on_device(0.5), torch.float32)
        exact = reference.gather_cache_fp8(cache.cpu(), each.cpu(), torch.tensor([0.5]))
        assert torch.equal(read.cpu(), exact.float())


def test_what_lies_beside_the_heads_is_not_read() -> None:
    wide = empty(2, 4, 3, 16)
    wide.view(torch.uint8).fill_(0x7F)
    wide[..., :5] = 1.0
    read = ops.gather_cache_fp8(wide[..., :5], slots_of(7, -1, 0), on_device(1.0), torch.float32)
    assert read.sum(dim=(1, 2)).tolist() == [15.0, 0.0, 15.0]


def test_offsets_pass_32_bits() -> None:
    """The last block lies beyond 2**31 codes, its number and its stride do not; of what is between, none is touched."""
    step = 2**30 + 64
    storage = torch.empty(2 * step + 64, dtype=torch.uint8, device=DEVICE)
    cache = storage.as_strided((3, 2, 1, 16), (step, 16, 16, 1)).view(E4M3)
    storage[:64], storage[2 * step :] = CANARY, CANARY
    key, one = torch.full((1, 1, 16), 2.0, device=DEVICE), on_device(1.0)
    other = empty(3, 2, 1, 16)
    ops.reshape_and_cache_fp8(key, key, cache, other, slots_of(5), one, one)
    assert cache[2, 1].float().tolist() == [[2.0] * 16]
    assert bool((bits(cache[0]) == CANARY).all())
    assert ops.gather_cache_fp8(cache, slots_of(5), one, torch.float32).tolist() == [[[2.0] * 16]]


def test_torch_knows_what_is_written() -> None:
    caches = [empty(2, 4, 2, 8), empty(2, 4, 2, 8)]
    given_ = (drawn(3, 2, 8), drawn(3, 2, 8), *caches, slots_of(5, -1, 2), on_device(1.0), on_device(1.0))
    operator = torch.ops.policyquant.reshape_and_cache_fp8.default
    torch.library.opcheck(operator, given_, test_utils=("test_faketensor", "test_autograd_registration"))
    written = {each.name for each in operator._schema.arguments if each.alias_info and each.alias_info.is_write}
    assert written == {"key_cache", "value_cache"}
    assert operator._schema.returns == []
    read = (caches[0], slots_of(5, -1), on_device(1.0), torch.bfloat16)
    torch.library.opcheck(torch.ops.policyquant.gather_cache_fp8.default, read, test_utils=("test_faketensor",))


def test_a_write_is_compiled_without_a_break() -> None:
    caches, one = [empty(2, 4, 2, 8), empty(2, 4, 2, 8)], on_device(1.0)

    def write_and_read(key: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        ops.reshape_and_cache_fp8(key, key, *caches, slots, one, one)
        return ops.gather_cache_fp8(caches[0], slots, one, torch.float32)

    compiled = torch.compile(write_and_read, backend="eager", fullgraph=True)
    key = torch.ones(2, 2, 8, device=DEVICE)
    assert torch.equal(compiled(key, slots_of(1, 6)), key)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": (3, 2, 7)}, "key is \\[3, 2, 7\\]"),
        ({"slots": (2,)}, "expected \\[T, 2, 8\\]"),
        ({"k_scale": (3,)}, "a scale is \\[3\\]"),
        ({"value_cache": (3, 4, 2, 8)}, "the same blocks"),
    ],
)
def test_what_does_not_belong_together_is_refused(change: dict[str, tuple[int, ...]], message: str) -> None:
    shapes = {"key": (3, 2, 8), "value_cache": (2, 4, 2, 8), "slots": (3,), "k_scale": (1,), **change}
    with pytest.raises(ValueError, match=message):
        ops.reshape_and_cache_fp8(
            torch.ones(shapes["key"], device=DEVICE),
            drawn(3, 2, 8),
            empty(2, 4, 2, 8),
            empty(*shapes["value_cache"]),
            torch.zeros(shapes["slots"], dtype=torch.int64, device=DEVICE),
            torch.ones(shapes["k_scale"], device=DEVICE),
            on_device(1.0),
        )


def test_a_cache_of_plain_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match="bfloat16, expected"):
        ops.gather_cache_fp8(drawn(2, 4, 2, 8), slots_of(0), on_device(1.0))
