"""The memory that a built model takes."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from policyquant.models.decoder import DecoderForCausalLM
    from policyquant.plan.plan import Plan


@dataclass(frozen=True)
class Memory:
    """Sizes in bytes."""

    stored: int | None
    """The checkpoint's layers; None if unknown."""
    planned: int | None
    """The model's layers by the plan."""
    built: int
    """The model's layers as they are."""
    kv_cache: int
    positions: int
    """How many positions the KV cache holds, in none of these units."""
    peak_resident: int | None
    """The most that this process has had in memory, Python and torch included; None where no system tells."""


def measure(model: DecoderForCausalLM, plan: Plan, positions: int) -> Memory:
    """The memory of a model, and of a KV cache of so many positions."""
    total = plan.total
    return Memory(
        total.bytes_before,
        total.bytes_after,
        stored_bytes(model),
        sum(cache.nbytes for cache in model.new_caches(1, positions)),
        positions,
        _peak_resident(),
    )


def stored_bytes(model: nn.Module) -> int:
    """Bytes of all tensors that a saved model would have; tied ones count once."""
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in model.state_dict().values()}.values())


def _peak_resident() -> int | None:
    try:
        import resource
    except ImportError:  # Windows has none.
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
