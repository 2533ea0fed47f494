"""A mixture of experts reads the chosen experts alone and sums what they say."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from policyquant.errors import PolicyQuantError
from policyquant.layers.moe import FusedMoE


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
