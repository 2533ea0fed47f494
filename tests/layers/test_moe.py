"""A mixture of experts reads the chosen experts alone and sums what they say."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from policyquant.errors import PolicyQuantError
from policyquant.kernels import dispatch
from policyquant.layers.moe import ExpertsLinear, FusedMoE


def _by_hand(moe: FusedMoE, x: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    weights, chosen = moe.route(logits)
    result = torch.zeros_like(x)
    for token in range(len(x)):
        for weight, expert in zip(weights[token], chosen[token], strict=True):
            gate, up = nn.functional.linear(x[token], moe.gate_up_proj.weight[expert]).chunk(2)
            result[token] += weight * nn.functional.linear(nn.functional.silu(gate) * up, moe.down_proj.weight[expert])
    return result


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("renormalize", [True, False])
def test_the_sum_is_that_of_each_token_alone(scoring: str, renormalize: bool) -> None:
    moe = FusedMoE(4, 2, 8, 6, scoring=scoring, renormalize=renormalize)  # type: ignore[arg-type]  # parametrized
    x, logits = torch.randn(5, 8), torch.randn(5, 4)
    torch.testing.assert_close(moe(x, logits), _by_hand(moe, x, logits), atol=1e-5, rtol=1e-5)


def test_experts_that_nobody_chose_are_not_read() -> None:
    moe = FusedMoE(4, 2, 8, 6)
    with torch.no_grad():
        for layer in (moe.gate_up_proj, moe.down_proj):
            layer.weight[2:] = torch.nan
    assert moe(torch.randn(5, 8), torch.tensor([1.0, 2.0, -9.0, -9.0]).expand(5, 4)).isfinite().all()


def test_shared_experts_are_added() -> None:
    shared = nn.Linear(8, 8)
    moe = FusedMoE(4, 2, 8, 6, shared_experts=shared)
    x, logits = torch.randn(2, 3, 8), torch.randn(2, 3, 4)
    with_shared = moe(x, logits)
    moe.shared_experts = None
    assert torch.equal(with_shared, moe(x, logits) + shared(x))


def test_logits_of_another_number_of_experts_are_refused() -> None:
    with pytest.raises(PolicyQuantError, match="router logits"):
        FusedMoE(4, 2, 8, 6)(torch.randn(2, 8), torch.randn(2, 3))


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_of_equal_logits_the_first_experts_are_chosen(scoring: str) -> None:
    moe = FusedMoE(6, 2, 8, 6, scoring=scoring)  # type: ignore[arg-type]  # parametrized
    weights, experts = moe.route(torch.zeros(3, 6))
    assert experts.tolist() == [[0, 1]] * 3
    assert weights.tolist() == [[0.5, 0.5]] * 3


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # torch's, of its own doing
@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
@pytest.mark.parametrize("forced", [None, "torch"])
def test_a_router_is_trained_through_the_weights(scoring: str, forced: str | None) -> None:
    moe = FusedMoE(4, 2, 8, 6, scoring=scoring)  # type: ignore[arg-type]  # parametrized
    x, logits = torch.randn(5, 8), torch.randn(5, 4, dtype=torch.float64)
    with dispatch.force(**({} if forced is None else {"name": forced})):
        _, forward = torch.func.jvp(lambda given: moe(x, given), (logits,), (logits,))
        moe(x, logits.requires_grad_()).sum().backward()
    assert logits.grad is not None
    assert (logits.grad != 0).any()
    torch.testing.assert_close((logits.grad * logits).sum().float(), forward.sum().detach())


def test_rows_may_come_in_any_order_with_their_experts() -> None:
    layer = ExpertsLinear(3, 8, {"up_proj": 6})
    x, owners = torch.randn(5, 8), torch.tensor([2, 0, 2, 0, 0])
    expected = torch.stack(
        [nn.functional.linear(row, layer.weight[owner]) for row, owner in zip(x, owners, strict=True)]
    )
    torch.testing.assert_close(layer(x, owners), expected)
