"""The `.out` overloads write where results belong, however that lies in memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from policyquant.kernels import dispatch
from policyquant.kernels.calls import Described, call
from tests.kernels.device import DEVICE

OPERATORS = sorted(name for name in dispatch.operators() if "out" in getattr(torch.ops.policyquant, name).overloads())
CANARY = 0x55


def elsewhere(result: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor of this shape whose last two dimensions lie the other way round, with gaps, and all that it lies in."""
    turned = result.transpose(-1, -2) if result.ndim > 1 else result
    size = [2 * turned.shape[0] + 1, *turned.shape[1:]] if turned.ndim else [3]
    whole = torch.full((*size, result.element_size()), CANARY, dtype=torch.uint8, device=result.device)
    storage = whole.view(result.dtype).squeeze(-1)
    part = storage[1::2] if turned.ndim else storage[1]
    return part.transpose(-1, -2) if result.ndim > 1 else part, storage


@pytest.mark.gpu
@pytest.mark.parametrize("implementation", ["torch", "triton", "cuda"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_results_go_where_they_belong_whatever_the_layout(operator: str, implementation: str) -> None:
    scales = "block" if operator == "block_scaled_mm" else "channel"
    described = Described(m=5, n=64, k=64, experts=3, heads=2, head_dim=16, group=32, scales=scales, device=DEVICE)
    inputs = call(operator, described).inputs
    packet = getattr(torch.ops.policyquant, operator)
    with dispatch.force(implementation):
        expected: Any = packet.default(*inputs)
        expected = expected if isinstance(expected, tuple) else (expected,)
        names = [each.name for each in packet.out._schema.arguments if each.is_out]
        targets = {name: elsewhere(each) for name, each in zip(names, expected, strict=True)}
        kept = inputs[: len(packet.out._schema.arguments) - len(names)]
        packet.out(*kept, **{name: target for name, (target, _) in targets.items()})
    for (target, whole), wanted in zip(targets.values(), expected, strict=True):
        same = target.view(torch.uint8) if target.element_size() == 1 else target
        assert torch.equal(same.cpu(), (wanted.view(torch.uint8) if wanted.element_size() == 1 else wanted).cpu())
        written = torch.zeros_like(whole, dtype=torch.bool)
        (written[1::2] if written.ndim and wanted.ndim else written[1:2]).fill_(True)
        beside = whole[~written].contiguous().view(torch.uint8)
        assert bool((beside == CANARY).all())
