"""Routing in plain torch, on any device: nothing waits for a GPU."""

from __future__ import annotations

from typing import Final

import torch

SMALLEST_SUM: Final = torch.finfo(torch.float32).tiny
"""Where all of a token's sigmoid scores underflow, its weights are zeros instead of NaN."""


def topk_softmax(logits: torch.Tensor, k: int, renormalize: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights and ids [T, k]."""
    wide = logits.float()
    return _weighed(wide.softmax(dim=-1), wide, k, renormalize)


def topk_sigmoid(
    logits: torch.Tensor, k: int, renormalize: bool, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights and ids [T, k]."""
    wide = logits.float()
    scores = wide.sigmoid()
    return _weighed(scores, wide if bias is None else scores + bias.float(), k, renormalize)


def _weighed(
    scores: torch.Tensor, choice: torch.Tensor, k: int, renormalize: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The scores of the k largest of `choice`. `torch.topk` does not say which of equal ones it takes."""
    ids = choice.sort(dim=-1, descending=True, stable=True).indices[:, :k]
    weights = scores.gather(-1, ids)
    if renormalize:
        weights = weights / weights.sum(dim=-1, keepdim=True).clamp_min(SMALLEST_SUM)
    return weights.contiguous(), ids.int().contiguous()


def moe_align(
    ids: torch.Tensor, block_size: int, num_experts: int, expert_map: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sorted pairs, experts of blocks, and the length of both that is in use."""
    pairs = ids.numel()
    blocks = (pairs + min(num_experts, pairs) * (block_size - 1)) // block_size
    local = local_experts(ids.reshape(-1), num_experts, expert_map)
    order = local.argsort(stable=True)
    # One more for the pairs of nobody here, which sort last.
    counts = torch.zeros(num_experts + 1, dtype=torch.int64, device=ids.device)
    counts.scatter_add_(0, local, torch.ones_like(local))
    padded = (counts + block_size - 1) // block_size * block_size
    padded[-1] = 0
    shift = (padded.cumsum(0) - padded) - (counts.cumsum(0) - counts)
    owners = local[order]
    place = torch.arange(pairs, device=ids.device) + shift[owners]
    # One more place, where the pairs of nobody go.
    place = torch.where(owners == num_experts, blocks * block_size, place)
    sorted_ids = torch.full((blocks * block_size + 1,), pairs, dtype=torch.int32, device=ids.device)
    sorted_ids.scatter_(0, place, order.int())
    ends = padded[:-1].cumsum(0)
    starts = torch.arange(blocks, device=ids.device) * block_size
    experts = torch.searchsorted(ends, starts, right=True)
    experts = torch.where(experts == num_experts, -1, experts)
    return sorted_ids[:-1].clone(), experts.int(), ends[-1:].int()


def local_experts(ids: torch.Tensor, num_experts: int, expert_map: torch.Tensor | None) -> torch.Tensor:
    """Which of the experts here each id is, int64; `num_experts` for those that are not here or no expert at all."""
    known = num_experts if expert_map is None else expert_map.shape[0]
    chosen = ids.long()
    here = (chosen >= 0) & (chosen < known)
    if expert_map is not None:
        if known == 0:
            return torch.full_like(chosen, num_experts)
        chosen = expert_map.long()[torch.where(here, chosen, 0)]
        here &= (chosen >= 0) & (chosen < num_experts)
    return torch.where(here, chosen, num_experts)
