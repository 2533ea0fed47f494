"""Plain models give the logits of transformers for the same weights, whole or step by step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from policyquant.models.decoder import DecoderForCausalLM  # noqa: E402
from policyquant.models.families import model_factory  # noqa: E402
from tests.models.tiny_models import CONFIGS, fill  # noqa: E402

pytestmark = pytest.mark.slow

LENGTH = 12


def merged(state: Mapping[str, torch.Tensor], model_type: str) -> dict[str, torch.Tensor]:
    """A state dict of transformers 5 under our names, the members of merged layers stacked."""
    members = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
    layer_of = {member: (layer, names) for layer, names in members.items() for member in names}
    result = {}
    for name, tensor in state.items():
        path = name.split(".")
        if path[-1] in ("gate_up_proj", "down_proj"):
            path.append("weight")
        if model_type == "mixtral":
            path = ["block_sparse_moe" if part == "mlp" else part for part in path]
        layer, names = layer_of.get(path[-2], ("", ()))
        if names:
            tensor = torch.cat([state[name.replace(path[-2], member)] for member in names])
            path[-2] = layer
        result[".".join(path)] = tensor
    return result


def both(config: Mapping[str, Any], dtype: torch.dtype, attention: str = "sdpa") -> tuple[Any, DecoderForCausalLM]:
    """The model of transformers and ours, with the same random weights."""
    made = transformers.AutoConfig.for_model(**config)
    theirs = transformers.AutoModelForCausalLM.from_config(made, attn_implementation=attention).eval()
    fill(theirs)
    theirs = theirs.to(dtype)
    # What transformers makes of the config, with all its defaults, is what it would write into `config.json`.
    ours = model_factory(made.to_dict())().to(dtype).eval()
    assert isinstance(ours, DecoderForCausalLM)
    ours.load_state_dict(merged(theirs.state_dict(), config["model_type"]))
    return theirs, ours


def token_ids(batch: int = 2) -> torch.Tensor:
    return torch.randint(0, 99, (batch, LENGTH), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", CONFIGS)
def test_in_float32_logits_are_those_of_transformers(name: str) -> None:
    theirs, ours = both(CONFIGS[name], torch.float32)
    with torch.inference_mode():
        expected, found = theirs(token_ids()).logits, ours(token_ids())
    assert expected.std() > 0.1, "logits so alike would hide differences"
    assert (found - expected).abs().max() <= 1e-5


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_as_people_write_it_gives_the_same_model(name: str) -> None:
    """Defaults, older names of rope parameters and heads that are left out are read as transformers reads them."""
    theirs, _ = both(CONFIGS[name], torch.float32)
    ours = model_factory(CONFIGS[name])()
    ours.load_state_dict(merged(theirs.state_dict(), CONFIGS[name]["model_type"]))
    with torch.inference_mode():
        assert (ours(token_ids()) - theirs(token_ids()).logits).abs().max() <= 1e-5


def in_bfloat16(name: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits of transformers' two attentions (sdpa, eager), ours, and ours in float32 with the same weights."""
    theirs, ours = both(CONFIGS[name], torch.bfloat16)
    eager, _ = both(CONFIGS[name], torch.bfloat16, "eager")
    ids = token_ids(batch=8)
    with torch.inference_mode():
        found = [theirs(ids).logits, eager(ids).logits, ours(ids), ours.float()(ids)]
    sdpa, plain, own, exact = (logits.float() for logits in found)
    return sdpa, plain, own, exact


@pytest.mark.parametrize("name", [name for name in CONFIGS if "moe" not in name and "mixtral" not in name])
def test_in_bfloat16_logits_are_as_near_as_two_attentions_of_transformers_are_to_each_other(name: str) -> None:
    sdpa, eager, own, _ = in_bfloat16(name)
    assert (own - sdpa).square().mean() <= (eager - sdpa).square().mean()


@pytest.mark.parametrize("name", CONFIGS)
def test_in_bfloat16_logits_are_as_near_to_the_exact_ones_as_those_of_transformers(name: str) -> None:
    """By the median: a router may choose another expert after rounding, in any of the three, and then all differs."""
    sdpa, eager, own, exact = in_bfloat16(name)
    theirs = max((logits - exact).abs().median() for logits in (sdpa, eager))
    assert (own - exact).abs().median() <= 1.1 * theirs


@pytest.mark.parametrize("name", CONFIGS)
def test_prefill_and_decoding_through_caches_give_the_logits_of_the_whole_sequence(name: str) -> None:
    _, ours = both(CONFIGS[name], torch.float32)
    ids = token_ids()
    caches = ours.new_caches(2, LENGTH)
    with torch.inference_mode():
        whole = ours(ids)
        steps = [ours(part, caches) for part in ids.split([4, 3, 1, 1, 1, 1, 1], dim=1)]
    assert (torch.cat(steps, dim=1) - whole).abs().max() <= 1e-5
    assert [cache.length for cache in caches] == [LENGTH] * len(caches)
