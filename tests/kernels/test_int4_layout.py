"""How 4-bit codes lie in memory."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from policyquant.kernels import int4_layout


def codes(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 16, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def test_the_even_column_has_the_lower_half_of_a_byte() -> None:
    q = torch.tensor([[1, 2, 3, 4, 15]], dtype=torch.uint8)
    assert int4_layout.pack(q).tolist() == [[0x21, 0x43, 0x0F]]


def test_eight_columns_are_an_int32_whose_lowest_bits_are_the_first() -> None:
    q = torch.tensor([[8, 7, 6, 5, 4, 3, 2, 1, 15]], dtype=torch.uint8)
    assert int4_layout.to_int32(int4_layout.pack(q)).tolist() == [[0x12345678, 0xF]]


def test_eight_rows_of_zero_points_are_an_int32() -> None:
    points = torch.tensor([[i + 1, 8] for i in range(9)], dtype=torch.uint8)
    words = int4_layout.zero_points_to_int32(points)
    assert words.tolist() == [[0x87654321 - 2**32, 0x88888888 - 2**32], [9, 8]]


@given(columns=st.integers(0, 40), rows=st.integers(0, 20), experts=st.sampled_from([None, 1, 3]))
def test_codes_come_back_from_bytes_and_from_int32(columns: int, rows: int, experts: int | None) -> None:
    q = codes(*([] if experts is None else [experts]), rows, columns)
    packed = int4_layout.pack(q)
    assert torch.equal(int4_layout.unpack(packed, columns), q)
    words = int4_layout.to_int32(packed)
    assert words.dtype == torch.int32
    assert torch.equal(int4_layout.from_int32(words, columns), packed)
    assert torch.equal(int4_layout.zero_points_from_int32(int4_layout.zero_points_to_int32(q), rows), q)


def test_bytes_may_start_anywhere() -> None:
    packed = int4_layout.pack(codes(3, 64))
    storage = torch.empty(3 * 32 + 1, dtype=torch.uint8)
    storage[1:] = packed.flatten()
    assert torch.equal(int4_layout.to_int32(storage[1:].view(3, 32)), int4_layout.to_int32(packed))


def test_columns_that_do_not_fill_their_bytes_are_refused() -> None:
    packed = int4_layout.pack(codes(3, 17))
    with pytest.raises(ValueError, match="16 codes take 8 bytes, found 9"):
        int4_layout.unpack(packed, 16)
    with pytest.raises(ValueError, match="25 codes take 4 int32, found 3"):
        int4_layout.from_int32(int4_layout.to_int32(packed), 25)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(5, 64), (16, 40), (9, 33), (2, 5, 32)])
def test_they_are_the_int32_of_compressed_tensors(shape: tuple[int, ...]) -> None:
    peer = pytest.importorskip("compressed_tensors.compressors.pack_quantized.helpers")
    q = codes(*shape)
    signed = (q.to(torch.int16) - 8).to(torch.int8)
    assert torch.equal(int4_layout.to_int32(int4_layout.pack(q)), peer.pack_to_int32(signed, 4))
    assert torch.equal(int4_layout.zero_points_to_int32(q), peer.pack_to_int32(signed, 4, packed_dim=0))
