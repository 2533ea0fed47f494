"""An FP8 cache: the codes of the reference, and attention that is off by no more than the format allows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from policyquant.kernels import reference
from policyquant.layers.attention import Attention
from policyquant.policy.scheme import Quantization, Scheme
from tests.kernels import error_bounds, hostile
from tests.kernels.error_bounds import U

FORMATS = {"float8_e4m3fn": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2}
HEAD_DIM = 8


def attention_with(name: str, scale: float | None, heads: int = 4, kv_heads: int = 2, **options: Any) -> Attention:
    attention = Attention(heads, HEAD_DIM, kv_heads, **options)
    attention.take_scheme(Scheme("none", kv_cache=Quantization(name, "tensor", scheme="static", scale=scale)))
    return attention


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", hostile.FLOATS)
@given(values=st.lists(hostile.values, min_size=2 * HEAD_DIM, max_size=2 * HEAD_DIM), data=st.data())
@settings(max_examples=50)
def test_what_is_put_into_a_cache_comes_back_as_the_reference_says(
    name: str, dtype: torch.dtype, values: list[float], data: st.DataObject
) -> None:
    """x / scale to the nearest code, ±inf saturated and NaN kept; codes · scale rounded to the cache's dtype."""
    scale = data.draw(st.none() | hostile.scale_values)
    x = torch.tensor(values).to(dtype).reshape(1, 1, 2, HEAD_DIM)
    cache = attention_with(name, scale).new_cache(1, 3, dtype=dtype)
    cache.append(x, -x)
    by = torch.tensor([1.0 if scale is None else scale])
    for stored, read, given_ in zip((cache.k, cache.v), cache.read(), (x, -x), strict=True):
        codes = reference.static_scaled_fp8_quant(given_, by, FORMATS[name])
        expected = reference.dequantize(codes, by)
        torch.testing.assert_close(
            reference.decode(stored[:, :1]), reference.decode(codes), rtol=0, atol=0, equal_nan=True
        )
        torch.testing.assert_close(read, expected.float().to(dtype), rtol=0, atol=0, equal_nan=True)
        error = error_bounds.encoding(given_, by, FORMATS[name])
        close = (given_.double() - expected).abs() <= error
        assert bool(close[given_.isfinite()].all())


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("batch", "length", "kv_heads"), [(1, 1, 1), (2, 33, 4), (3, 7, 2)])
def test_the_bytes_of_a_cache_are_those_of_its_codes_and_one_scale(
    name: str, batch: int, length: int, kv_heads: int
) -> None:
    elements = 2 * batch * length * kv_heads * HEAD_DIM
    for dtype in hostile.FLOATS:
        plain = Attention(4, HEAD_DIM, kv_heads).new_cache(batch, length, dtype=dtype)
        cache = attention_with(name, None, kv_heads=kv_heads).new_cache(batch, length, dtype=dtype)
        assert plain.nbytes == elements * dtype.itemsize
        assert cache.nbytes == elements + 4


def softmax_over(
    q: torch.Tensor, k: torch.Tensor, window: int | None, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities, and which keys each query sees: q, k [B, H, T, D] → [B, H, T, T], float64."""
    at = torch.arange(q.shape[2])
    seen = at[None, :] <= at[:, None]
    if window is not None:
        seen &= at[None, :] > at[:, None] - window
    scores = scale * (q @ k.transpose(-1, -2))
    return scores.masked_fill(~seen, -torch.inf).softmax(-1), seen


def attention_bound(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    probabilities: torch.Tensor,
    seen: torch.Tensor,
    key_error: torch.Tensor,
    value_error: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """|attention over a cache - attention over k and v| at most, element by element, computed in float32.

    A score q · k · scale moves by d = scale · Σ |q| · key_error, and by the rounding of its float32 sum, under
    (D + 8) · U · scale · Σ |q| · (|k| + key_error). With d at most m over the keys that a query sees, a probability p
    changes by a factor between exp(-2 m) and g = exp(2 m), for its own exponential and their sum each change by
    exp(±m). So Σ p · v moves by Σ p · (g · value_error + (g - 1) · |v|), and by the roundings of a float32 sum of T
    terms, of exponentials and of a quotient: (T + 16) · U · Σ g · p · (|v| + value_error).
    """
    terms = seen.shape[-1]
    size = q.abs() @ (k.abs() + key_error).transpose(-1, -2)
    moved = scale * (q.abs() @ key_error.transpose(-1, -2) + (HEAD_DIM + 8) * U * size)
    g = torch.exp(2 * moved.masked_fill(~seen, 0.0).amax(-1, keepdim=True))
    formats = g * (probabilities @ value_error) + (g - 1) * (probabilities @ v.abs())
    sums = (terms + 16) * U * g * (probabilities @ (v.abs() + value_error))
    return formats + sums


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("steps", [[7], [4, 1, 1, 1], [3, 4]])
@given(
    seed=st.integers(0, 2**32),
    size=st.sampled_from([0.01, 0.3, 1.0]),
    scale=st.sampled_from([None, 0.001, 0.003, 0.02, 2.0]),
)
@settings(max_examples=10)
def test_attention_over_an_fp8_cache_is_within_the_bound_of_its_format(
    name: str, kv_heads: int, window: int | None, steps: list[int], seed: int, size: float, scale: float | None
) -> None:
    """Of attention without a cache, on the values as they were given; scales saturate some of them."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(2, 7, heads, HEAD_DIM, generator=generator) for heads in (4, kv_heads, kv_heads))
    k = k * size
    attention = attention_with(name, scale, kv_heads=kv_heads, sliding_window=window)
    cache = attention.new_cache(2, 9, dtype=torch.float32)
    parts = zip(*(each.split(steps, dim=1) for each in (q, k, v)), strict=True)
    y = torch.cat([attention(*part, cache) for part in parts], dim=1)

    by = torch.tensor([1.0 if scale is None else scale])
    errors = [error_bounds.encoding(each, by, FORMATS[name]) for each in (k, v)]
    wide = [each.double().transpose(1, 2) for each in (q, k, v, *errors)]
    of_q, *others = [wide[0], *(each.repeat_interleave(4 // kv_heads, dim=1) for each in wide[1:])]
    of_k, of_v, key_error, value_error = others
    probabilities, seen = softmax_over(of_q, of_k, window, attention.scale)
    exact = probabilities @ of_v
    bound = attention_bound(of_q, of_k, of_v, probabilities, seen, key_error, value_error, attention.scale)
    error_bounds.assert_within(y, exact.transpose(1, 2).flatten(2), bound.transpose(1, 2).flatten(2))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("steps", [[6], [1] * 6, [4, 1, 1]])
def test_attention_over_an_fp8_cache_is_attention_over_what_it_hands_back(
    name: str, dtype: torch.dtype, steps: list[int]
) -> None:
    """To the bit: nothing but the values of keys and values changes."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 6, heads, HEAD_DIM, generator=generator).to(dtype) for heads in (4, 2, 2))
    by = torch.tensor([0.05])
    rounded = [
        reference.dequantize(reference.static_scaled_fp8_quant(each, by, FORMATS[name]), by).float().to(dtype)
        for each in (k, v)
    ]
    results = []
    for attention, keys, values in ((attention_with(name, 0.05), k, v), (Attention(4, HEAD_DIM, 2), *rounded)):
        cache = attention.new_cache(2, 8, dtype=dtype)
        parts = zip(*(each.split(steps, dim=1) for each in (q, keys, values)), strict=True)
        results.append(torch.cat([attention(*part, cache) for part in parts], dim=1))
    assert torch.equal(*results)
