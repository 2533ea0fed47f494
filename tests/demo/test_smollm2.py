"""SmolLM2-135M-Instruct with its real weights is the model that transformers has, and answers under a policy too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("gguf")

from demo.convert_smollm2 import convert  # noqa: E402
from policyquant import build  # noqa: E402
from policyquant.models.decoder import DecoderForCausalLM  # noqa: E402
from policyquant.models.families import model_factory  # noqa: E402
from tests.cli.command import ROOT, Run  # noqa: E402

pytestmark = pytest.mark.slow

TEXT = "The sea is salt because rivers carry minerals into it, and the sun takes only the water away again."


@pytest.fixture(scope="module")
def smollm2() -> Path:
    """What `make demo` runs; made here if it is not there yet."""
    return convert(ROOT / "build/smollm2")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(capsys)


def ours(directory: Path, dtype: torch.dtype) -> DecoderForCausalLM:
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    model = build(model_factory(config), policy=None, source=directory, dtype=dtype)
    assert isinstance(model, DecoderForCausalLM)
    return model.eval()


def theirs(directory: Path, dtype: torch.dtype, attention: str = "sdpa") -> Any:
    load = transformers.AutoModelForCausalLM.from_pretrained
    return load(directory, dtype=dtype, attn_implementation=attention).eval()


def token_ids(directory: Path) -> torch.Tensor:
    return torch.tensor([transformers.AutoTokenizer.from_pretrained(directory)(TEXT).input_ids])


def test_in_float32_logits_are_those_of_transformers(smollm2: Path) -> None:
    ids = token_ids(smollm2)
    with torch.inference_mode():
        expected, found = theirs(smollm2, torch.float32)(ids).logits, ours(smollm2, torch.float32)(ids)
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_in_bfloat16_logits_are_as_near_as_two_attentions_of_transformers_are_to_each_other(smollm2: Path) -> None:
    ids = token_ids(smollm2)
    with torch.inference_mode():
        sdpa, eager = (theirs(smollm2, torch.bfloat16, each)(ids).logits.float() for each in ("sdpa", "eager"))
        own = ours(smollm2, torch.bfloat16)(ids).float()
    assert (own - sdpa).square().mean() <= (eager - sdpa).square().mean()


@pytest.mark.parametrize("policy", [[], ["--policy", ROOT / "demo/policy.yaml"]], ids=["none", "demo"])
def test_it_knows_the_capital_of_france_and_takes_the_planned_memory(
    smollm2: Path, run: Run, policy: list[object]
) -> None:
    words = ("run", smollm2, *policy, "--chat", "--prompt", "What is the capital of France?", "--json", "--quiet")
    status, out, err = run(*words)
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert found["text"] == "The capital of France is Paris."
    assert found["ended"] == "end token"
    assert found["bytes"]["built"] == found["bytes"]["planned"]
