"""Which experts a token goes to, and the blocks in which a mixture's products read its tokens."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from policyquant.kernels import dispatch, ops, reference
from tests.kernels import hostile
from tests.kernels.device import DEVICE

IMPLEMENTATIONS = ("torch", "triton", "cuda")
NAN, INF = float("nan"), float("inf")

implementations = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def chosen(
    implementation: str,
    logits: torch.Tensor,
    k: int,
    renormalize: bool,
    sigmoid: bool,
    bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    with dispatch.force(implementation):
        if sigmoid:
            weights, ids = ops.topk_sigmoid(logits, k, renormalize, bias)
        else:
            weights, ids = ops.topk_softmax(logits, k, renormalize)
    assert (weights.dtype, ids.dtype) == (torch.float32, torch.int32)
    return weights.cpu(), ids.cpu()


def aligned(
    implementation: str, ids: torch.Tensor, block: int, experts: int, expert_map: torch.Tensor | None = None
) -> tuple[torch.Tensor, ...]:
    with dispatch.force(implementation):
        results = ops.moe_align(ids.to(DEVICE), block, experts, None if expert_map is None else expert_map.to(DEVICE))
    return tuple(each.cpu() for each in results)


@pytest.mark.gpu
@implementations
@pytest.mark.parametrize("sigmoid", [False, True])
@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize(
    ("tokens", "experts", "k"), [(1, 1, 1), (5, 8, 2), (3, 288, 8), (2, 1025, 6), (40, 60, 4), (9, 200, 32), (0, 8, 2)]
)
def test_the_largest_logits_are_chosen_and_their_scores_weigh(
    implementation: str, sigmoid: bool, renormalize: bool, tokens: int, experts: int, k: int
) -> None:
    logits = random(tokens, experts).to(DEVICE)
    weights, ids = chosen(implementation, logits, k, renormalize, sigmoid)
    function = reference.topk_sigmoid if sigmoid else reference.topk_softmax
    exact, expected = function(logits.cpu(), k, renormalize)
    assert torch.equal(ids, expected)
    torch.testing.assert_close(weights.double(), exact, rtol=1e-5, atol=0.0)


@pytest.mark.gpu
@implementations
def test_a_bias_chooses_and_does_not_weigh(implementation: str) -> None:
    logits, bias = random(6, 12).to(DEVICE), torch.zeros(12, device=DEVICE)
    bias[7], bias[3] = 2.0, -2.0
    weights, ids = chosen(implementation, logits, 3, False, True, bias)
    exact, expected = reference.topk_sigmoid(logits.cpu(), 3, False, bias.cpu())
    assert torch.equal(ids, expected)
    assert bool((ids[:, 0] == 7).all())
    assert not bool((ids == 3).any())
    torch.testing.assert_close(weights.double(), exact, rtol=1e-5, atol=0.0)
    assert bool((weights < 1).all())


@pytest.mark.gpu
@implementations
@pytest.mark.parametrize("sigmoid", [False, True])
def test_equal_logits_go_to_the_lower_id(implementation: str, sigmoid: bool) -> None:
    logits = torch.tensor([[0.0, -0.0, 0.0, -0.0], [1.0, 5.0, 1.0, 5.0], [-3.0, -7.0, -7.0, -3.0]], device=DEVICE)
    _, ids = chosen(implementation, logits, 3, True, sigmoid)
    assert ids.tolist() == [[0, 1, 2], [1, 3, 0], [0, 3, 1]]
    many = torch.arange(100, device=DEVICE).remainder(3).float()[None]
    assert chosen(implementation, many, 4, True, sigmoid)[1].tolist() == [[2, 5, 8, 11]]


@pytest.mark.gpu
@implementations
def test_what_differs_in_logits_alone_is_chosen_by_these(implementation: str) -> None:
    """Both probabilities are zeros in float32, and both sigmoids 1."""
    for sigmoid, row in ((False, [-200.0, 0.0, -150.0]), (True, [40.0, 90.0, 50.0])):
        _, ids = chosen(implementation, torch.tensor([row], device=DEVICE), 2, False, sigmoid)
        assert ids.tolist() == [[1, 2]]


@pytest.mark.gpu
@implementations
@pytest.mark.parametrize("sigmoid", [False, True])
def test_rows_with_nan_have_different_experts_and_nan_weights(implementation: str, sigmoid: bool) -> None:
    logits = torch.tensor([[NAN] * 5, [1.0, NAN, 3.0, -NAN, 2.0], [1.0, 2.0, 3.0, 4.0, 5.0]], device=DEVICE)
    weights, ids = chosen(implementation, logits, 3, True, sigmoid)
    assert ids.tolist() == [[0, 1, 2], [1, 3, 2], [4, 3, 2]]
    assert bool(weights[:2].isnan().all())
    assert bool(weights[2].isfinite().all())


@pytest.mark.gpu
@implementations
def test_scores_of_large_logits_do_not_overflow(implementation: str) -> None:
    logits = torch.tensor([[200.0, 199.0, 0.0], [-200.0, -199.0, -1e30]], device=DEVICE)
    weights, ids = chosen(implementation, logits, 2, False, False)
    assert ids.tolist() == [[0, 1], [1, 0]]
    torch.testing.assert_close(weights, torch.tensor([[1.0, 0.0]] * 2).softmax(1), rtol=1e-5, atol=0.0)


@pytest.mark.gpu
@implementations
def test_infinite_logits_choose_valid_experts(implementation: str) -> None:
    logits = torch.tensor([[-INF] * 4, [-INF, 2.0, -INF, 1.0], [0.0, INF, 1.0, INF]], device=DEVICE)
    weights, ids = chosen(implementation, logits, 2, False, False)
    assert ids.tolist() == [[0, 1], [1, 3], [1, 3]]
    assert bool(weights[0].isnan().all())
    torch.testing.assert_close(weights[1], torch.tensor([2.0, 1.0]).softmax(0))
    weights, ids = chosen(implementation, logits, 2, True, True)
    assert ids.tolist() == [[0, 1], [1, 3], [1, 3]]
    assert weights[0].tolist() == [0.0, 0.0]  # all scores underflow


@pytest.mark.gpu
@implementations
@pytest.mark.parametrize("layout", hostile.LAYOUTS)
@pytest.mark.parametrize("dtype", hostile.FLOATS)
def test_logits_may_have_any_layout_and_dtype(implementation: str, layout: str, dtype: torch.dtype) -> None:
    logits = random(5, 9).to(dtype)
    weights, ids = chosen(implementation, hostile.laid_out(logits, layout).to(DEVICE), 3, True, False)
    exact, expected = reference.topk_softmax(logits, 3, True)
    assert torch.equal(ids, expected)
    torch.testing.assert_close(weights.double(), exact, rtol=1e-5, atol=0.0)


@pytest.mark.gpu
@settings(max_examples=15)
@given(data=st.data(), experts=st.integers(1, 20), rows=st.integers(1, 4))
def test_choices_are_those_of_the_reference_for_any_logits(data: st.DataObject, experts: int, rows: int) -> None:
    drawn = data.draw(st.lists(hostile.values, min_size=rows * experts, max_size=rows * experts))
    logits, k = torch.tensor(drawn).reshape(rows, experts), data.draw(st.integers(1, experts))
    for sigmoid in (False, True):
        expected = (reference.topk_sigmoid if sigmoid else reference.topk_softmax)(logits, k, False)[1]
        for implementation in IMPLEMENTATIONS:
            assert torch.equal(chosen(implementation, logits.to(DEVICE), k, False, sigmoid)[1], expected)


def test_a_number_of_choices_that_is_none_is_refused() -> None:
    for k in (0, 5):
        with pytest.raises(ValueError, match="in 1 … 4"):
            ops.topk_softmax(random(2, 4), k, True)


@pytest.mark.gpu
@implementations
@pytest.mark.parametrize(
    ("tokens", "k", "experts", "block"),
    [
        (1, 1, 1, 16),
        (7, 2, 4, 4),
        (33, 8, 288, 16),
        (3, 6, 1025, 64),
        (150, 8, 5, 32),
        (1200, 4, 3, 16),
        (0, 2, 4, 16),
        (5, 3, 8, 1),
    ],
)
def test_pairs_are_sorted_by_expert_in_padded_blocks(
    implementation: str, tokens: int, k: int, experts: int, block: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, experts, (tokens, k), generator=generator, dtype=torch.int32)
    for found, expected in zip(
        aligned(implementation, ids, block, experts), reference.moe_align(ids, block, experts), strict=True
    ):
        assert found.dtype == torch.int32
        assert torch.equal(found, expected)


@pytest.mark.gpu
@implementations
def test_all_tokens_may_go_to_one_expert_and_one_token_to_one_expert_many_times(implementation: str) -> None:
    for ids in (torch.full((65, 2), 3, dtype=torch.int32), torch.tensor([[0, 0, 0, 0]], dtype=torch.int32)):
        for found, expected in zip(aligned(implementation, ids, 16, 4), reference.moe_align(ids, 16, 4), strict=True):
            assert torch.equal(found, expected)


@pytest.mark.gpu
@implementations
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_ids_of_no_expert_here_are_left_out_and_look_up_nothing(implementation: str, dtype: torch.dtype) -> None:
    ids = torch.tensor([[0, 10**6], [-1, 2], [3, 1], [4, -(2**31)]], dtype=dtype)
    sorted_ids, expert_ids, num_padded = aligned(implementation, ids, 2, 4)
    assert sorted_ids.tolist()[:8] == [0, 8, 5, 8, 3, 8, 4, 8]
    assert expert_ids.tolist() == [0, 1, 2, 3, *[-1] * (len(expert_ids) - 4)]
    assert num_padded.tolist() == [8]
    assert bool((sorted_ids[8:] == 8).all())


@pytest.mark.gpu
@implementations
def test_a_map_says_which_experts_are_here(implementation: str) -> None:
    """Global experts 5 and 1 are here as 0 and 1; 3 maps to what is not there."""
    expert_map = torch.tensor([-1, 1, -1, 7, -1, 0], dtype=torch.int32)
    ids = torch.tensor([[1, 5], [3, 2], [5, 6], [0, 1]], dtype=torch.int32)
    found = aligned(implementation, ids, 4, 2, expert_map)
    for each, expected in zip(found, reference.moe_align(ids, 4, 2, expert_map), strict=True):
        assert torch.equal(each, expected)
    assert found[0].tolist()[:8] == [1, 4, 8, 8, 0, 7, 8, 8]
    assert found[1].tolist()[:3] == [0, 1, -1]


@pytest.mark.gpu
@settings(max_examples=15)
@given(
    tokens=st.integers(0, 20),
    k=st.integers(1, 4),
    experts=st.integers(1, 9),
    block=st.sampled_from([1, 3, 16]),
    seed=st.integers(0, 2**32),
    mapped=st.booleans(),
)
def test_blocks_are_those_of_the_reference_for_any_ids(
    tokens: int, k: int, experts: int, block: int, seed: int, mapped: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(-2, experts + 3, (tokens, k), generator=generator, dtype=torch.int32)
    expert_map = torch.randint(-1, experts + 1, (experts + 1,), generator=generator, dtype=torch.int32)
    given_map = expert_map if mapped else None
    expected = reference.moe_align(ids, block, experts, given_map)
    for implementation in IMPLEMENTATIONS:
        for found, exact in zip(aligned(implementation, ids, block, experts, given_map), expected, strict=True):
            assert torch.equal(found, exact)


@pytest.mark.gpu
@implementations
def test_the_implementation_that_is_forced_runs(implementation: str) -> None:
    dispatch.launches.clear()
    aligned(implementation, torch.tensor([[0, 1]], dtype=torch.int32), 16, 2)
    for sigmoid in (False, True):
        chosen(implementation, random(1, 4).to(DEVICE), 2, True, sigmoid)
    names = ("moe_align", "topk_softmax", "topk_sigmoid")
    assert dispatch.launches == {(name, implementation): 1 for name in names}


@pytest.mark.gpu
def test_what_the_cuda_kernel_cannot_count_is_left_to_others() -> None:
    for ids, experts, expert_map in (
        (torch.zeros(1, 2, dtype=torch.int16), 4, None),
        (torch.zeros(1, 2, dtype=torch.int32), 4097, None),
        (torch.zeros(1, 2, dtype=torch.int32), 4, torch.zeros(4, dtype=torch.int64)),
    ):
        dispatch.launches.clear()
        aligned("cuda", ids, 16, experts, expert_map)
        assert dispatch.launches["moe_align", "cuda"] == 0


@pytest.mark.gpu
def test_more_logits_or_choices_than_a_warp_holds_are_left_to_others() -> None:
    for experts, k in ((2049, 2), (40, 33)):
        dispatch.launches.clear()
        logits = random(1, experts)
        _, ids = chosen("cuda", logits.to(DEVICE), k, False, False)
        assert torch.equal(ids, reference.topk_softmax(logits, k, False)[1])
        assert dispatch.launches["topk_softmax", "cuda"] == 0


@pytest.mark.gpu
@implementations
def test_ids_and_maps_may_have_any_layout(implementation: str) -> None:
    ids = torch.tensor([[1, 0, 2], [2, 2, 1]], dtype=torch.int32)
    expert_map = torch.tensor([1, 9, 0, 9, -1, 9], dtype=torch.int32)
    found = aligned(implementation, ids.T.contiguous().T, 2, 2, expert_map[::2])
    for each, expected in zip(found, reference.moe_align(ids, 2, 2, expert_map[::2]), strict=True):
        assert torch.equal(each, expected)
