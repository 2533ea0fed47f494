"""Mixture of experts: the experts' matrices in one layer each, and the sum over those that a router chose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, get_args

import torch
from torch import nn

from policyquant.errors import PolicyQuantError, did_you_mean
from policyquant.kernels import dispatch, ops
from policyquant.kernels.cpu import routing
from policyquant.layers.activation import SiluAndMul
from policyquant.layers.base import QuantConfig, WeightLayer
from policyquant.layers.gradients import gradient_asked, product
from policyquant.methods.base import values_are_known
from policyquant.policy.scheme import Quantization
from policyquant.quantized_tensor import QuantizedTensor

Scoring = Literal["softmax", "sigmoid"]
"""How router logits become scores; both are computed in float32."""

_FORCED: Final = frozenset({"*", "fused_moe"})
"""Of what `dispatch.forced` names, that by which a CPU computes a mixture as a GPU does."""


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

    def forward(
        self, x: torch.Tensor | QuantizedTensor, counts: list[int] | torch.Tensor
    ) -> torch.Tensor | QuantizedTensor:
        """x [T, in_features], sorted by expert → [T, out_features]; `counts[e]` rows are expert e's.

        The weights of experts without rows are not read. Where values are not known, as when a graph is made, `counts`
        is an integer tensor [T], the expert of each row in any order: each expert is then computed for all rows.
        """
        if isinstance(counts, torch.Tensor):
            return self._emit(self._of_owners(x, counts[:, None]))
        return self._emit(product(self, x, counts))

    def _of_owners(self, x: torch.Tensor | QuantizedTensor, owners: torch.Tensor) -> torch.Tensor:
        """Rows of x [T, K], each by the expert in owners [T, 1]."""
        experts, rows = self.weight_shape[0], len(x)
        result = product(self, x, [rows, *[0] * (experts - 1)])
        for expert in range(1, experts):
            counts = [rows if each == expert else 0 for each in range(experts)]
            result = torch.where(owners == expert, product(self, x, counts), result)
        return result

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

    On a GPU, and where a graph is made, the method of the experts may compute all of it at once (`apply_moe`), and
    `gate_up_proj`, `act` and `down_proj` are not called. They are if one has a hook, a forward of its own or an output
    in FP8, and if a gradient is asked for.

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
        """router_logits [T, experts] → weights (float32) and experts (int32), both [T, top_k], the best first.

        The largest logits are chosen, of equal ones those of the first experts.
        """
        # Operators have no gradient, and on a CPU plain torch is called sooner.
        on_cpu = router_logits.is_cpu and not torch.compiler.is_compiling() and not dispatch.forced()
        plain = on_cpu or gradient_asked(router_logits)
        if self.scoring == "softmax":
            softmax = routing.topk_softmax if plain else ops.topk_softmax
            return softmax(router_logits, self.top_k, self.renormalize)
        sigmoid = routing.topk_sigmoid if plain else ops.topk_sigmoid
        return sigmoid(router_logits, self.top_k, self.renormalize, None)

    def _mix(self, tokens: torch.Tensor | QuantizedTensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """tokens [T, hidden], each given to its chosen experts → the weighted sums [T, hidden]."""
        known = values_are_known(chosen)
        if self._may_be_at_once(tokens, weights, known):
            result = self.gate_up_proj.quant_method.apply_moe(
                self.gate_up_proj, self.down_proj, tokens, weights, chosen
            )
            if result is not None:
                return result
        experts = chosen.flatten()
        if known:
            order = experts.argsort(stable=True)
            counts: list[int] = experts.bincount(minlength=self.num_experts).tolist()
            by_expert = self._of_each(tokens[order // self.top_k], counts)
            results = torch.empty_like(by_expert)
            results[order] = by_expert
        else:
            pairs = torch.arange(experts.shape[0], device=experts.device)
            results = self._of_each(tokens[pairs // self.top_k], experts)
        each, shares = results.view(-1, self.top_k, results.shape[-1]).unbind(1), weights.unsqueeze(2).unbind(1)
        total = each[0] * shares[0]
        for result, share in zip(each[1:], shares[1:], strict=True):
            total = total + result * share
        return total.to(results.dtype)

    def _of_each(self, x: torch.Tensor | QuantizedTensor, counts: list[int] | torch.Tensor) -> torch.Tensor:
        """Rows of x, each by one expert; `counts` as `ExpertsLinear` takes it."""
        result: torch.Tensor = self.down_proj(self.act(self.gate_up_proj(x, counts)), counts)
        return result

    def _may_be_at_once(self, tokens: torch.Tensor | QuantizedTensor, weights: torch.Tensor, known: bool) -> bool:
        """Whether the method is asked to compute all of it. A CPU, unless forced, goes expert by expert."""
        if known and tokens.device.type != "cuda" and _FORCED.isdisjoint(dispatch.forced()):
            return False
        gate_up, act, down = self.gate_up_proj, self.act, self.down_proj
        through = tokens.scale if isinstance(tokens, QuantizedTensor) else tokens
        if gradient_asked(through, weights, *gate_up._parameters.values(), *down._parameters.values()):
            return False
        if act.scheme.output is not None or any(
            isinstance(each.scheme.output, Quantization) for each in (gate_up, down)
        ):
            return False
        kinds = (gate_up, ExpertsLinear), (act, SiluAndMul), (down, ExpertsLinear)
        return not _global_hooks() and all(_does_no_more_than(kind, layer) for layer, kind in kinds)

    def extra_repr(self) -> str:
        return f"top_k={self.top_k}, scoring={self.scoring!r}, renormalize={self.renormalize}"


def _does_no_more_than(kind: type[nn.Module], layer: nn.Module) -> bool:
    """Whether a call of the layer is what its kind says: it has no hook, and no forward of its own."""
    own = type(layer).forward is not kind.forward or "forward" in layer.__dict__
    return not (own or layer._forward_hooks or layer._forward_pre_hooks)


def _global_hooks() -> bool:
    """Whether a hook is called with every module."""
    hooks = nn.modules.module
    return bool(hooks._global_forward_hooks or hooks._global_forward_pre_hooks)
