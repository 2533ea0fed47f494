"""CUDA graphs: what is captured computes anew when it is replayed. Only a GPU has them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from policyquant.kernels import dispatch
from policyquant.kernels.calls import Described, call
from tests.kernels.device import DEVICE

OPERATORS = sorted(dispatch.operators())


def results(made: Any) -> tuple[torch.Tensor, ...]:
    return () if made is None else made if isinstance(made, tuple) else (made,)


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE != "cuda", reason="needs a GPU")
@pytest.mark.parametrize("implementation", ["torch", "triton", "cuda"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_a_replayed_graph_computes_anew(operator: str, implementation: str) -> None:
    scales = "block" if operator == "block_scaled_mm" else "channel"
    described = Described(m=48, n=256, k=256, experts=4, scales=scales, device=DEVICE)
    function = getattr(torch.ops.policyquant, operator).default
    held, fresh = (call(operator, described).inputs for _ in range(2))
    with dispatch.force(implementation):
        function(*held)  # Compiled before anything is captured.
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = results(function(*held))
        for mine, new in zip(held, fresh, strict=True):
            if isinstance(mine, torch.Tensor):
                mine.copy_(new)
        for _ in range(2):
            for each in captured:
                each.view(torch.uint8).fill_(0x55)
            graph.replay()
            for found, expected in zip(captured, results(function(*fresh)), strict=True):
                assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))
