"""Forms of stored quantized weights that nothing here runs or takes apart: one clear sentence for each layer."""

from __future__ import annotations

import pytest
import torch

from policyquant import build
from policyquant.errors import BuildError
from policyquant.models.families import model_factory
from tests.building.stored_forms import LLAMA, State, as_fp8, fuse, one_by_one

DOWN = "model.layers.0.mlp.down_proj"


def integers(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


FOREIGN: dict[str, State] = {
    "INT4, per channel": {
        "weight_packed": integers(32, 6),
        "weight_scale": torch.ones(32, 1),
        "weight_shape": torch.tensor([32, 48]),
    },
    "AWQ 4 bit, group 48": {
        "qweight": integers(48, 4),
        "qzeros": integers(1, 4),
        "scales": torch.ones(1, 32, dtype=torch.float16),
    },
    "I8, per channel": {"weight": torch.zeros(32, 48, dtype=torch.int8), "weight_scale": torch.ones(32, 1)},
    "F8_E4M3, block 128x128": {
        "weight": torch.zeros(32, 48).to(torch.float8_e4m3fn),
        "weight_scale_inv": torch.ones(1, 1),
    },
    "MXFP4, group 24": {
        "weight": torch.zeros(32, 24, dtype=torch.uint8),
        "weight_scale": torch.zeros(32, 2, dtype=torch.uint8),
    },
    "bitsandbytes NF4": {
        "weight": torch.zeros(768, 1, dtype=torch.uint8),
        "weight.absmax": torch.ones(24),
        "weight.quant_map": torch.ones(16),
        "weight.quant_state.bitsandbytes__nf4": torch.zeros(80, dtype=torch.uint8),
    },
}


def stored_as(form: str) -> State:
    state = one_by_one(LLAMA)
    del state[f"{DOWN}.weight"]
    return {**state, **{f"{DOWN}.{suffix}": tensor for suffix, tensor in FOREIGN[form].items()}}


@pytest.mark.parametrize("form", FOREIGN)
def test_what_cannot_run_as_stored_is_told(form: str) -> None:
    with pytest.raises(
        BuildError, match=f"1 problem\n  '{DOWN}' is stored as .*{form} and the plan leaves it so, which"
    ):
        build(model_factory(LLAMA), policy=None, source=stored_as(form))


@pytest.mark.parametrize("method", ["fp8", "int8_weight_only"])
@pytest.mark.parametrize("form", FOREIGN)
def test_what_a_method_cannot_load_is_told(form: str, method: str) -> None:
    message = rf"1 problem\n  '{DOWN}' is stored as .*{form}, which method '{method}' cannot load \("
    with pytest.raises(BuildError, match=message):
        build(model_factory(LLAMA), policy={"layers": {"*.down_proj": method}}, source=stored_as(form))


def test_fp8_does_not_become_int8() -> None:
    state = as_fp8(one_by_one(LLAMA), ("q_proj", "k_proj", "v_proj"))
    fused = fuse(state, ("q_proj", "k_proj", "v_proj"), "qkv_proj", ("weight", "weight_scale"))
    message = (
        r"1 problem\n  'model\.layers\.{0\.\.1}\.self_attn\.qkv_proj' is stored as F8_E4M3, per channel, which method"
    )
    with pytest.raises(BuildError, match=message):
        build(model_factory(LLAMA), policy={"layers": {"*.qkv_proj": "int8_weight_only"}}, source=fused)
