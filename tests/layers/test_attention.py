"""Attention equals its formula, with and without a cache, and an FP8 cache holds half the bytes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from policyquant.errors import PolicyQuantError  # noqa: E402
from policyquant.layers.attention import Attention, KVCache  # noqa: E402
from policyquant.policy.scheme import Quantization, Scheme  # noqa: E402


def drawn(
    length: int, heads: int, kv_heads: int, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q = torch.randn(2, length, heads, 8, dtype=dtype)
    k, v = torch.randn(2, 2, length, kv_heads, 8, dtype=dtype)
    return q, k, v


def by_formula(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = True, window: int | None = None
) -> torch.Tensor:
    """One query at a time, in float64: softmax over the keys it may see."""
    batch, length, heads, head_dim = q.shape
    group = heads // k.shape[2]
    q, k, v = q.double(), k.double(), v.double()
    result = torch.empty_like(q)
    for b in range(batch):
        for h in range(heads):
            for t in range(length):
                first = 0 if window is None else max(0, t + 1 - window)
                last = t + 1 if causal else length
                keys, values = k[b, first:last, h // group], v[b, first:last, h // group]
                result[b, t, h] = torch.softmax(keys @ q[b, t, h] / head_dim**0.5, 0) @ values
    return result.flatten(2)


def in_steps(attention: Attention, cache: KVCache, steps: list[int], tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
    parts = zip(*(tensor.split(steps, dim=1) for tensor in tensors), strict=True)
    return torch.cat([attention(q, k, v, cache) for q, k, v in parts], dim=1)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (4, 1)])
@pytest.mark.parametrize(("causal", "window"), [(True, None), (False, None), (True, 3), (True, 1), (True, 100)])
def test_attention_equals_the_formula(heads: int, kv_heads: int, causal: bool, window: int | None) -> None:
    q, k, v = drawn(7, heads, kv_heads)
    attention = Attention(heads, 8, kv_heads, sliding_window=window, causal=causal)
    expected = by_formula(q, k, v, causal=causal, window=window)
    torch.testing.assert_close(attention(q, k, v).double(), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("steps", [[7], [4, 1, 1, 1], [1] * 7, [3, 4], [2, 3, 2]])
def test_with_a_cache_the_steps_do_not_matter(kv_heads: int, window: int | None, steps: list[int]) -> None:
    tensors = drawn(7, 4, kv_heads)
    attention = Attention(4, 8, kv_heads, sliding_window=window)
    result = in_steps(attention, attention.new_cache(2, 9), steps, tensors)
    torch.testing.assert_close(result.double(), by_formula(*tensors, window=window), atol=1e-6, rtol=1e-5)


def test_the_scale_can_be_given() -> None:
    q, k, v = drawn(5, 4, 4)
    torch.testing.assert_close(Attention(4, 8, scale=0.25)(q, k, v), Attention(4, 8)(q * 0.25 * 8**0.5, k, v))


def test_a_cache_is_allocated_once_and_counts_positions() -> None:
    attention = Attention(4, 8, 2)
    cache = attention.new_cache(2, 16, dtype=torch.bfloat16)
    assert cache.k.shape == cache.v.shape == (2, 16, 2, 8)
    assert cache.k.dtype == torch.bfloat16
    before = cache.k.data_ptr()
    in_steps(attention, cache, [3, 1], drawn(4, 4, 2, torch.bfloat16))
    assert cache.length == 4
    assert cache.k.data_ptr() == before
    cache.reset()
    assert cache.length == 0


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_an_fp8_cache_takes_half_the_bytes_of_a_bf16_one(name: str) -> None:
    plain, quantized = Attention(4, 8, 2), Attention(4, 8, 2)
    quantized.take_scheme(Scheme("none", kv_cache=Quantization(name, "tensor", scheme="static")))
    before = plain.new_cache(2, 16, dtype=torch.bfloat16)
    after = quantized.new_cache(2, 16, dtype=torch.bfloat16)
    assert after.k.dtype == after.v.dtype == getattr(torch, name)
    assert after.k.nbytes + after.v.nbytes == (before.k.nbytes + before.v.nbytes) // 2
    assert after.nbytes - after.k.nbytes - after.v.nbytes == 4, "one float32 scale"


@pytest.mark.parametrize("scale", [None, 0.5])
def test_an_fp8_cache_hands_back_the_nearest_codes_times_the_scale(scale: float | None) -> None:
    attention = Attention(4, 8, 2)
    attention.take_scheme(
        Scheme("none", kv_cache=Quantization("float8_e4m3fn", "tensor", scheme="static", scale=scale))
    )
    q, k, v = drawn(5, 4, 2, torch.bfloat16)
    k[0, 0, 0, 0] = 1e6
    cache = attention.new_cache(2, 8, dtype=torch.bfloat16)
    result = attention(q, k, v, cache)
    by = 1.0 if scale is None else scale
    codes = (k.float() / by).clamp(-448, 448).to(torch.float8_e4m3fn)
    assert torch.equal(cache.k[:, :5].view(torch.uint8), codes.view(torch.uint8))
    read_k, read_v = cache.read()
    assert torch.equal(read_k, (codes.float() * by).to(torch.bfloat16))
    assert read_k[0, 0, 0, 0] == 448 * by
    assert torch.equal(result, Attention(4, 8, 2)(q, read_k, read_v))


def test_what_a_later_position_holds_does_not_reach_earlier_ones() -> None:
    q, k, v = drawn(6, 4, 2)
    attention = Attention(4, 8, 2)
    before = attention(q, k, v)
    k[:, 4:], v[:, 4:] = 100.0, -100.0
    assert torch.equal(attention(q, k, v)[:, :4], before[:, :4])


def test_more_positions_than_the_cache_holds_are_refused_and_leave_it_as_it_was() -> None:
    attention = Attention(4, 8, 2)
    cache = attention.new_cache(2, 4)
    q, k, v = drawn(3, 4, 2)
    attention(q, k, v, cache)
    with pytest.raises(PolicyQuantError, match="holds 4 positions, of which 3 are filled; 3 more do not fit"):
        attention(q, k, v, cache)
    assert cache.length == 3


def test_a_cache_for_another_batch_is_refused() -> None:
    attention = Attention(4, 8, 2)
    q, k, v = drawn(3, 4, 2)
    with pytest.raises(PolicyQuantError, match=r"shape \[1, 4, 2, 8\] takes keys and values \[1, positions, 2, 8\]"):
        attention(q, k, v, attention.new_cache(1, 4))


@pytest.mark.parametrize(
    ("kv_cache", "message"),
    [
        (Quantization("int8", "tensor", scheme="static"), "cannot be stored as int8"),
        (Quantization("float8_e4m3fn", "head", scheme="static"), "takes granularity tensor .* found head"),
        (Quantization("float8_e4m3fn", "tensor", scheme="dynamic"), "takes a static scale, found dynamic"),
    ],
)
def test_a_cache_that_cannot_be_stored_is_refused_when_the_plan_gives_it(kv_cache: Quantization, message: str) -> None:
    attention = Attention(4, 8, prefix="model.layers.0.self_attn.attn")
    with pytest.raises(PolicyQuantError, match=rf"^model\.layers\.0\.self_attn\.attn: .*{message}"):
        attention.take_scheme(Scheme("none", kv_cache=kv_cache))


def test_heads_that_cannot_be_shared_evenly_are_refused() -> None:
    with pytest.raises(PolicyQuantError, match="4 heads cannot share 3 key-value heads"):
        Attention(4, 8, 3)


def test_a_window_without_causality_is_refused() -> None:
    with pytest.raises(PolicyQuantError, match="sliding_window needs causal"):
        Attention(4, 8, sliding_window=2, causal=False)
