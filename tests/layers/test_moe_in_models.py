"""Models with experts in FP8 give the same logits whichever implementation runs their operators."""

from __future__ import annotations

import pytest
import torch

from policyquant import build
from policyquant.building.targets import logical_state
from policyquant.kernels import dispatch
from policyquant.layers.moe import FusedMoE
from policyquant.models.families import model_factory
from tests.models.tiny_models import CONFIGS, tiny_model

TOKENS = torch.arange(12).reshape(2, 6)
FAMILIES = ["mixtral", "qwen3_moe"]


def plain_and_fp8(family: str, dtype: torch.dtype) -> tuple[torch.nn.Module, torch.nn.Module]:
    """The model as it is, and with all that FP8 takes in FP8."""
    plain = tiny_model(family).to(dtype)
    policy = {"version": 1, "default": "fp8"}
    return plain, build(model_factory(CONFIGS[family]), policy=policy, source=logical_state(plain), dtype=dtype)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_logits_do_not_depend_on_who_computes_them(family: str, dtype: torch.dtype) -> None:
    plain, model = plain_and_fp8(family, dtype)
    logits = model(TOKENS)
    of_fp8 = (logits - plain(TOKENS)).float().norm()
    assert of_fp8 > 0
    mixtures = sum(isinstance(each, FusedMoE) for each in model.modules())
    for name, bound in (("torch", 0.0), ("triton", 1e-2 if dtype == torch.float32 else 0.5)):
        before = dispatch.launches["fused_moe", name]
        with dispatch.force(name):
            found = model(TOKENS)
        assert dispatch.launches["fused_moe", name] == before + mixtures
        # Another order of sums moves a few codes, by far less than FP8 itself moves the logits.
        assert (found - logits).float().norm() <= bound * of_fp8


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_a_whole_model_compiles_into_one_graph(family: str) -> None:
    torch._dynamo.reset()
    for model in plain_and_fp8(family, torch.float32):
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(TOKENS), model(TOKENS))
