"""Attention equals its formula, with and without a cache, and an FP8 cache holds half the bytes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from policyquant.errors import PolicyQuantError  # noqa: E402
from policyquant.kernels import dispatch  # noqa: E402
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


def fp8_attention(name: str = "float8_e4m3fn", scale: float = 0.02) -> Attention:
    attention = Attention(4, 8, 2)
    attention.take_scheme(Scheme("none", kv_cache=Quantization(name, "tensor", scheme="static", scale=scale)))
    return attention


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("steps", [[5], [3, 1, 1]])
@pytest.mark.parametrize("implementation", ["torch", "triton"])
def test_the_operator_for_paged_caches_writes_the_same_codes_to_the_same_places(
    implementation: str, steps: list[int], name: str
) -> None:
    attention = fp8_attention(name)
    tensors = drawn(5, 4, 2, torch.bfloat16)
    with torch.no_grad():
        expected, found = (attention.new_cache(2, 8, dtype=torch.bfloat16) for _ in range(2))
        apart = in_steps(attention, expected, steps, tensors)
        dispatch.launches.clear()
        with dispatch.force(implementation):
            result = in_steps(attention, found, steps, tensors)
    assert dispatch.launches["reshape_and_cache_fp8", implementation] == len(steps)
    assert not [operator for operator, _ in dispatch.launches if "scaled_fp8_quant" in operator]
    assert torch.equal(found.k.view(torch.uint8), expected.k.view(torch.uint8))
    assert torch.equal(found.v.view(torch.uint8), expected.v.view(torch.uint8))
    assert torch.equal(result, apart)


def test_keys_and_values_that_lie_among_queries_are_written_as_they_are() -> None:
    attention = fp8_attention()
    projected = torch.randn(2, 3, 8 * 8, dtype=torch.bfloat16)
    q, k, v = (part.unflatten(-1, (-1, 8)) for part in projected.split([32, 16, 16], dim=-1))
    with torch.no_grad():
        expected, found = (attention.new_cache(2, 8, dtype=torch.bfloat16) for _ in range(2))
        attention(q, k, v, expected)
        with dispatch.force("triton"):
            attention(q, k, v, found)
    assert torch.equal(found.k.view(torch.uint8), expected.k.view(torch.uint8))
    assert torch.equal(found.v.view(torch.uint8), expected.v.view(torch.uint8))


@pytest.mark.parametrize("quantized", [False, True])
def test_a_step_with_a_cache_is_one_graph_for_torch_compile(quantized: bool) -> None:
    attention = fp8_attention() if quantized else Attention(4, 8, 2)
    tensors = drawn(5, 4, 2, torch.bfloat16)
    torch._dynamo.reset()
    with torch.no_grad():
        expected, found = (attention.new_cache(2, 8, dtype=torch.bfloat16) for _ in range(2))
        by_hand = in_steps(attention, expected, [4, 1], tensors)
        compiled = torch.compile(attention, backend="eager", fullgraph=True)
        result = in_steps(compiled, found, [4, 1], tensors)
    assert torch.equal(result, by_hand)
    assert found.length == 5


def test_on_a_gpu_a_step_writes_keys_and_values_in_one_launch_and_reads_each_in_one() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    from tests.layers.calls import Called

    with FakeTensorMode(), torch.device("cuda"), torch.no_grad():
        attention = fp8_attention()
        cache = attention.new_cache(2, 8, dtype=torch.bfloat16)
        q, k, v = (torch.randn(2, 1, heads, 8, dtype=torch.bfloat16) for heads in (4, 2, 2))
        with Called() as called:
            attention(q, k, v, cache)
    assert called.names == ["reshape_and_cache_fp8", "dequantize", "dequantize"]
    assert called.made == [], "no slots are computed for a step"


@pytest.mark.gpu
def test_a_gpu_stores_the_codes_that_a_cpu_stores() -> None:
    from tests.kernels.device import DEVICE

    attention = fp8_attention()
    tensors = drawn(5, 4, 2, torch.bfloat16)
    with torch.no_grad():
        here = attention.new_cache(2, 8, dtype=torch.bfloat16)
        there = attention.new_cache(2, 8, DEVICE, torch.bfloat16)
        expected = in_steps(attention, here, [3, 1, 1], tensors)
        found = in_steps(attention, there, [3, 1, 1], tuple(each.to(DEVICE) for each in tensors))
    assert torch.equal(there.k.cpu().view(torch.uint8), here.k.view(torch.uint8))
    assert torch.equal(there.v.cpu().view(torch.uint8), here.v.view(torch.uint8))
    torch.testing.assert_close(found.cpu(), expected, rtol=2**-6, atol=2**-6)


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
