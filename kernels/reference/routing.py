"""Which experts a token goes to, and the order in which a mixture's products read its tokens."""

from __future__ import annotations

import torch


def topk_softmax(logits: torch.Tensor, k: int, renormalize: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """exp(logit) / Σ exp(logits) of the k largest logits, over the sum of these if `renormalize`, and their ids."""
    wide = logits.double()
    return _weighed(torch.softmax(wide, dim=-1), wide, k, renormalize)


def topk_sigmoid(
    logits: torch.Tensor, k: int, renormalize: bool, bias: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """1 / (1 + exp(-logit)) where that plus the bias is largest, over the sum of these if `renormalize`, and their ids.

    The operator rounds what it compares, sigmoid + bias, to float32; without a bias it compares the logits.
    """
    scores = 1 / (1 + torch.exp(-logits.double()))
    return _weighed(scores, logits.double() if bias is None else scores + bias.double(), k, renormalize)


def _weighed(
    scores: torch.Tensor, choice: torch.Tensor, k: int, renormalize: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    # NaN is the largest, and equal values stay in their order.
    ids = choice.sort(dim=-1, descending=True, stable=True).indices[:, :k]
    weights = scores.gather(-1, ids)
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
    return weights, ids.int()


def moe_align(
    ids: torch.Tensor, block_size: int, num_experts: int, expert_map: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pairs by expert in blocks, the blocks' experts, and where the last block ends."""
    chosen = ids.reshape(-1).tolist()
    here = list(range(num_experts)) if expert_map is None else expert_map.tolist()
    owners = [here[each] if 0 <= each < len(here) else -1 for each in chosen]
    pairs: list[int] = []
    experts: list[int] = []
    for expert in range(num_experts):
        own = [pair for pair, owner in enumerate(owners) if owner == expert]
        own += [len(chosen)] * (-len(own) % block_size)
        pairs += own
        experts += [expert] * (len(own) // block_size)
    blocks = (len(chosen) + min(num_experts, len(chosen)) * (block_size - 1)) // block_size
    used = len(pairs)
    pairs += [len(chosen)] * (blocks * block_size - used)
    experts += [-1] * (blocks - len(experts))
    return tuple(torch.tensor(each, dtype=torch.int32) for each in (pairs, experts, [used]))  # type: ignore[return-value]
