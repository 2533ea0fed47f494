"""Mixture of experts: the experts' matrices in one layer each, and the sum over those that a router chose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, get_args

import torch
from torch import nn

from policyquant.errors import PolicyQuantError, did_you_mean
from policyquant.layers.activation import SiluAndMul
from policyquant.layers.base import QuantConfig, WeightLayer
from policyquant.layers.gradients import product
from policyquant.quantized_tensor import QuantizedTensor

Scoring = Literal["softmax", "sigmoid"]
"""How router logits become scores; both are computed in float32."""

_SMALLEST_SUM: Final = torch.finfo(torch.float32).tiny
"""Where all of a token's sigmoid scores underflow, its weights are zeros instead of NaN."""


class ExpertsLinear(WeightLayer):
    """One linear for each expert, all in one weight [experts, out_features, in_features].

    `parts` are the members of each expert, as in `MergedColumnParallelLinear`.
    """

    def __init__(
        self,
        num_experts: int,
        in_features: int,
        parts: Mapping[str, int],
        bias: bool = False,
        *,
        quant_config: QuantConfig | None = None,
        prefix: str = "",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            in_features,
            parts,
            has_bias=bias,
            num_experts=num_experts,
            quant_config=quant_config,
            prefix=prefix,
            device=device,
            dtype=dtype,
        )

    def forward(self, x: torch.Tensor | QuantizedTensor, counts: list[int]) -> torch.Tensor | QuantizedTensor:
        """x [T, in_features], sorted by expert → [T, out_features]; `counts[e]` rows are expert e's.

        The weights of experts without rows are not read.
        """
        return self._emit(product(self, x, counts))

    def extra_repr(self) -> str:
        named = [f"{name}={rows}" for name, rows in self.parts.items()]
        sizes = [f"num_experts={self.num_experts}", f"in_features={self.in_features}", *named]
        scheme = super().extra_repr()
        return ", ".join([*sizes, f"bias={self.has_bias}", *([scheme] if scheme else [])])


class FusedMoE(nn.Module):
    """The chosen experts' results, weighted and summed; each expert is down(silu(gate(x)) * up(x)).

    The router is outside. A token's weights are its `top_k` best scores, divided by their sum if `renormalize`.
    Experts are handed all their tokens at once, and those that nobody chose are not read. `parts` are the names of
    gate, up and down as checkpoints spell them. `shared_experts` is given the same input, and its result is added.

    Raises:
        PolicyQuantError: `top_k` is not in 1 … `num_experts`, `parts` are not three different names, or `scoring` is
            unknown.
    """

    def __init__(
        self,
        num_experts: int,
        top_k: int,
        hidden_size: int,
        intermediate_size: int,
        *,
        parts: Sequence[str] = ("gate_proj", "up_proj", "down_proj"),
        scoring: Scoring = "softmax",
        renormalize: bool = True,
        shared_experts: nn.Module | None = None,
        quant_config: QuantConfig | None = None,
        prefix: str = "",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not 1 <= top_k <= num_experts:
            raise PolicyQuantError(f"FusedMoE {prefix!r}: top_k must be in 1 … {num_experts}, found {top_k}")
        if len(parts) != 3 or len(set(parts)) != 3:
            raise PolicyQuantError(f"FusedMoE {prefix!r}: parts are three different names, found {list(parts)}")
        if scoring not in get_args(Scoring):
            expected = " or ".join(map(repr, get_args(Scoring)))
            near = did_you_mean(scoring, get_args(Scoring))
            raise PolicyQuantError(f"FusedMoE {prefix!r}: scoring is {expected}, found {scoring!r}{near}")
        self.num_experts = num_experts
        self.top_k = top_k
        self.scoring = scoring
        self.renormalize = renormalize
        gate, up, down = parts
        inside = f"{prefix}." if prefix else ""
        self.gate_up_proj = ExpertsLinear(
            num_experts,
            hidden_size,
            {gate: intermediate_size, up: intermediate_size},
            quant_config=quant_config,
            prefix=f"{inside}gate_up_proj" if prefix else "",
            device=device,
            dtype=dtype,
        )
        self.act = SiluAndMul(quant_config=quant_config, prefix=f"{inside}act" if prefix else "")
        self.down_proj = ExpertsLinear(
            num_experts,
            intermediate_size,
            {down: hidden_size},
            quant_config=quant_config,
            prefix=f"{inside}down_proj" if prefix else "",
            device=device,
            dtype=dtype,
        )
        self.shared_experts = shared_experts

    def forward(self, x: torch.Tensor | QuantizedTensor, router_logits: torch.Tensor) -> torch.Tensor:
        """x [..., hidden], router_logits [..., experts] → [..., hidden], in the dtype that `down_proj` returns.

        The sum is taken in float32, a token's best expert first, and rounded once: the same in every run.

        Raises:
            PolicyQuantError: the logits are not one for each expert and token.
        """
        if router_logits.shape != (*x.shape[:-1], self.num_experts):
            raise PolicyQuantError(
                f"router logits must be {[*x.shape[:-1], self.num_experts]}, one for each token and expert; found"
                f" {list(router_logits.shape)}"
            )
        tokens = x.reshape(-1, x.shape[-1])
        weights, chosen = self.route(router_logits.reshape(-1, self.num_experts))
        result = self._mix(tokens, weights, chosen).reshape(x.shape)
        return result if self.shared_experts is None else result + self.shared_experts(x)

    def route(self, router_logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """router_logits [T, experts] → weights (float32) and experts (int64), both [T, top_k], the best first."""
        logits = router_logits.float()
        scores = logits.softmax(dim=-1) if self.scoring == "softmax" else logits.sigmoid()
        weights, chosen = scores.topk(self.top_k, dim=-1)
        if self.renormalize:
            weights = weights / weights.sum(dim=-1, keepdim=True).clamp_min(_SMALLEST_SUM)
        return weights, chosen

    def _mix(self, tokens: torch.Tensor | QuantizedTensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """tokens [T, hidden], each given to its chosen experts → the weighted sums [T, hidden]."""
        experts = chosen.flatten()
        order = experts.argsort(stable=True)
        counts: list[int] = experts.bincount(minlength=self.num_experts).tolist()
        sorted_results = self.down_proj(self.act(self.gate_up_proj(tokens[order // self.top_k], counts)), counts)
        results = torch.empty_like(sorted_results)
        results[order] = sorted_results
        each = results.view(-1, self.top_k, results.shape[-1]).unbind(1)
        total = each[0] * weights[:, :1]
        for rank in range(1, self.top_k):
            total = total + each[rank] * weights[:, rank : rank + 1]
        return total.to(results.dtype)

    def extra_repr(self) -> str:
        return f"top_k={self.top_k}, scoring={self.scoring!r}, renormalize={self.renormalize}"
