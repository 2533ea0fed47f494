"""Which experts a token goes to, and the order in which a mixture's products read its tokens."""

from __future__ import annotations

from typing import Any, Final

import torch

from policyquant.kernels import dispatch
from policyquant.kernels.cpu import routing as plain
from policyquant.kernels.operators.refusals import other_than_floats
from policyquant.kernels.registration import define, like

_ops: Any = torch.ops.policyquant

_MOST_EXPERTS: Final = 4096
"""Whose tokens the CUDA kernel counts."""
_MOST_LOGITS: Final = 2048
"""Of a token, that a warp holds."""
_MOST_CHOICES: Final = 32
"""Of a token: one for each thread of a warp."""


def aligned_blocks(pairs: int, block_size: int, num_experts: int) -> int:
    """How many blocks `moe_align` may need: each expert with tokens wastes less than one."""
    return (pairs + min(num_experts, pairs) * (block_size - 1)) // block_size


def _chosen(logits: torch.Tensor, k: int, renormalize: bool, bias: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (logits.shape[0], k)
    return like(logits, shape, torch.float32), like(logits, shape, torch.int32)


def _aligned(ids: torch.Tensor, block_size: int, num_experts: int, expert_map: Any) -> tuple[torch.Tensor, ...]:
    blocks = aligned_blocks(ids.numel(), block_size, num_experts)
    sizes = (blocks * block_size, blocks, 1)
    return tuple(like(ids, (size,), torch.int32) for size in sizes)


def _refuses_cuda_alignment(
    on: dispatch.Machine, ids: torch.Tensor, block_size: int, num_experts: int, expert_map: Any, **outs: torch.Tensor
) -> str | None:
    if ids.dtype not in (torch.int32, torch.int64):
        return f"it takes ids in int32 and int64, found {ids.dtype}"
    if expert_map is not None and expert_map.dtype != torch.int32:
        return f"it takes a map in int32, found {expert_map.dtype}"
    if num_experts > _MOST_EXPERTS:
        return f"it takes at most {_MOST_EXPERTS} experts, found {num_experts}"
    places = outs["out"].shape[0] + block_size
    return None if places < 2**31 else f"it numbers at most 2**31 - 1 places, found {places}"


def _refuses_cuda_choice(
    on: dispatch.Machine, logits: torch.Tensor, k: int, renormalize: bool, bias: Any = None, **outs: torch.Tensor
) -> str | None:
    if logits.shape[1] > _MOST_LOGITS or k > _MOST_CHOICES:
        return f"it chooses at most {_MOST_CHOICES} of at most {_MOST_LOGITS}, found {k} of {logits.shape[1]}"
    if bias is not None and bias.dtype != torch.float32:
        return f"it takes a bias in float32, found {bias.dtype}"
    return other_than_floats(logits)


def _choosing(operator: str) -> tuple[dispatch.Implementation, ...]:
    return dispatch.cuda(operator, refuses=_refuses_cuda_choice), dispatch.triton("routing", operator)


_CHOSEN = {"out": "a", "out_ids": "b"}

define(
    "topk_softmax",
    "Tensor logits, int k, bool renormalize",
    _CHOSEN,
    plain.topk_softmax,
    _chosen,
    implementations=_choosing("topk_softmax"),
)
define(
    "topk_sigmoid",
    "Tensor logits, int k, bool renormalize, Tensor? bias",
    _CHOSEN,
    plain.topk_sigmoid,
    _chosen,
    implementations=_choosing("topk_sigmoid"),
)
define(
    "moe_align",
    "Tensor ids, int block_size, int num_experts, Tensor? expert_map",
    {"out": "a", "out_expert_ids": "b", "out_num_padded": "c"},
    plain.moe_align,
    _aligned,
    implementations=(
        dispatch.cuda("moe_align", refuses=_refuses_cuda_alignment),
        dispatch.triton("routing", "moe_align"),
    ),
)


def topk_softmax(logits: torch.Tensor, k: int, renormalize: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The k best experts of each token: logits [T, E] → weights float32 and ids int32, [T, k], the best first.

    Weights are softmax(logits) in float32, divided by the sum of the chosen ones if `renormalize`. The largest logits
    are chosen, equal ones by the lower id. NaN ranks above every number, as in `torch.topk`: a row that holds NaN has k
    different experts and NaN weights.

    Raises:
        ValueError: k is not in 1 … E.
    """
    _check_k(logits, k)
    result: tuple[torch.Tensor, torch.Tensor] = _ops.topk_softmax.default(logits, k, renormalize)
    return result


def topk_sigmoid(
    logits: torch.Tensor, k: int, renormalize: bool, bias: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The k best experts as by `topk_softmax`, with sigmoid(logits) as weights.

    Where a bias [E] is given, sigmoid(logits) + bias chooses; the bias does not weigh (DeepSeek-V3, 2024,
    arXiv:2412.19437, section 2.1.2). Where all chosen scores underflow, renormalized weights are zeros.

    Raises:
        ValueError: k is not in 1 … E.
    """
    _check_k(logits, k)
    result: tuple[torch.Tensor, torch.Tensor] = _ops.topk_sigmoid.default(logits, k, renormalize, bias)
    return result


def moe_align(
    ids: torch.Tensor, block_size: int, num_experts: int, expert_map: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The (token, choice) pairs of ids [T, k] sorted by expert, each expert's padded to blocks of `block_size`.

    Args:
        ids: integers. Those that are no expert are of nobody here, and are left out.
        num_experts: whose weights are here.
        expert_map: [experts everywhere] int32: which of those here an id is, or -1. None: an id is that number.

    Returns:
        sorted_ids, int32 [blocks · block_size]: pairs token · k + choice, an expert's in their order; T · k where a
        block is not full, and behind the last one.
        expert_ids, int32 [blocks]: the expert here that owns a block; -1 behind the last one.
        num_padded, int32 [1]: where the last block that is owned ends.

    There are as many blocks as could be needed: (T · k + min(E, T · k) · (block_size - 1)) // block_size.

    Raises:
        ValueError: `block_size` or `num_experts` is less than 1.
    """
    if block_size < 1 or num_experts < 1:
        raise ValueError(f"moe_align: block_size {block_size} and num_experts {num_experts} must be at least 1")
    result: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = _ops.moe_align.default(
        ids, block_size, num_experts, expert_map
    )
    return result


def _check_k(logits: torch.Tensor, k: int) -> None:
    if not 1 <= k <= logits.shape[-1]:
        raise ValueError(f"k must be in 1 … {logits.shape[-1]}, the number of experts; found {k}")
