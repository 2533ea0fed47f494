"""Generation hands out the likeliest tokens, or drawn ones that a seed repeats, until the text ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice

import pytest

torch = pytest.importorskip("torch")

from policyquant.errors import PolicyQuantError  # noqa: E402
from policyquant.models.decoder import DecoderForCausalLM  # noqa: E402
from policyquant.models.generation import generate  # noqa: E402
from tests.models.tiny_models import CONFIGS, tiny_model  # noqa: E402

PROMPT = [3, 14, 15, 92, 6]


@pytest.fixture(scope="module")
def model() -> DecoderForCausalLM:
    return tiny_model("llama")


def without_caches(model: DecoderForCausalLM, prompt: list[int], count: int) -> Iterator[int]:
    """The likeliest next token, the whole text read again for each."""
    ids = list(prompt)
    for _ in range(count):
        with torch.inference_mode():
            ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
        yield ids[-1]


@pytest.mark.parametrize("name", CONFIGS)
def test_tokens_through_caches_are_those_of_reading_the_whole_text_again(name: str) -> None:
    model = tiny_model(name)
    seen = set()
    for prompt in (PROMPT, [50], [7, 7, 8]):
        tokens = list(generate(model, prompt, max_new_tokens=8))
        assert tokens == list(without_caches(model, prompt, 8))
        seen.update(tokens)
    assert len(seen) > 2, "a constant would be right by chance"


def test_without_a_temperature_every_run_gives_the_same(model: DecoderForCausalLM) -> None:
    first, second = (list(generate(model, PROMPT, max_new_tokens=8, seed=seed)) for seed in (0, 1))
    assert first == second


def test_a_seed_repeats_what_was_drawn_and_another_one_does_not(model: DecoderForCausalLM) -> None:
    drawn = [list(generate(model, PROMPT, max_new_tokens=16, temperature=1.0, seed=seed)) for seed in (7, 7, 8)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_seed_leaves_the_global_generator_alone(model: DecoderForCausalLM) -> None:
    before = torch.random.get_rng_state()
    list(generate(model, PROMPT, max_new_tokens=4, temperature=1.0, seed=7))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_tokens_are_drawn_with_the_probabilities_of_the_model(model: DecoderForCausalLM) -> None:
    with torch.inference_mode():
        expected = (model(torch.tensor([PROMPT]))[0, -1] / 0.5).softmax(-1)
    runs = 400
    drawn = Counter(next(generate(model, PROMPT, max_new_tokens=1, temperature=0.5, seed=seed)) for seed in range(runs))
    token = int(expected.argmax())
    # Four standard deviations of a binomial share.
    spread = 4 * float(expected[token] * (1 - expected[token]) / runs) ** 0.5
    assert drawn[token] / runs == pytest.approx(float(expected[token]), abs=spread)


def test_top_k_draws_from_the_likeliest_only(model: DecoderForCausalLM) -> None:
    with torch.inference_mode():
        best = model(torch.tensor([PROMPT]))[0, -1].topk(3).indices.tolist()
    drawn = {next(generate(model, PROMPT, max_new_tokens=1, temperature=5.0, top_k=3, seed=n)) for n in range(60)}
    assert drawn == set(best)


def test_top_k_of_one_or_a_tiny_temperature_is_the_likeliest_token(model: DecoderForCausalLM) -> None:
    greedy = list(generate(model, PROMPT, max_new_tokens=6))
    assert list(generate(model, PROMPT, max_new_tokens=6, temperature=1.0, top_k=1)) == greedy
    assert list(generate(model, PROMPT, max_new_tokens=6, temperature=1e-30, seed=0)) == greedy


def test_an_end_token_is_the_last_one(model: DecoderForCausalLM) -> None:
    tokens = list(generate(model, PROMPT, max_new_tokens=12))
    end = tokens[4]
    stopped = list(generate(model, PROMPT, max_new_tokens=12, eos_token_ids=(end, 98)))
    assert stopped == tokens[: tokens.index(end) + 1]


@pytest.mark.parametrize("prompt", [PROMPT, torch.tensor(PROMPT), torch.tensor([PROMPT], dtype=torch.int32)])
def test_a_prompt_is_a_list_or_a_tensor(model: DecoderForCausalLM, prompt: list[int] | torch.Tensor) -> None:
    assert list(generate(model, prompt, max_new_tokens=3)) == list(generate(model, PROMPT, max_new_tokens=3))


def test_tokens_are_made_as_they_are_asked_for_and_inference_mode_stays_inside(model: DecoderForCausalLM) -> None:
    tokens = generate(model, PROMPT, max_new_tokens=1000)
    assert len(list(islice(tokens, 2))) == 2
    assert not torch.is_inference_mode_enabled()


def test_no_tokens_are_made_if_none_are_asked_for(model: DecoderForCausalLM) -> None:
    assert list(generate(model, PROMPT, max_new_tokens=0)) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"input_ids": []}, r"one prompt of at least one token, found shape \[1, 0\]"),
        ({"input_ids": torch.zeros(2, 3, dtype=torch.int64)}, r"found shape \[2, 3\]"),
        ({"input_ids": [1, 99]}, "must be in 0 … 98, found 99"),
        ({"input_ids": [-1]}, "must be in 0 … 98, found -1"),
        ({"input_ids": "hi"}, "must be token ids, whole numbers that a tokenizer makes of text; found str 'hi'"),
        ({"input_ids": ["hi"]}, "must be token ids"),
        ({"input_ids": None}, "must be token ids"),
        ({"input_ids": [2**70]}, "must be token ids"),
        ({"input_ids": [1.5]}, "must be token ids, .*found torch.float32"),
        ({"max_new_tokens": -1}, "max_new_tokens must be a whole number of at least 0, found -1"),
        ({"max_new_tokens": 1.5}, "max_new_tokens must be a whole number of at least 0, found 1.5"),
        ({"temperature": -0.5}, "temperature must be finite and at least 0, found -0.5"),
        ({"temperature": float("nan")}, "temperature must be finite"),
        ({"top_k": 0}, "top_k must be at least 1, found 0"),
    ],
)
def test_arguments_out_of_their_range_are_refused_at_the_call(
    model: DecoderForCausalLM, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(PolicyQuantError, match=message):
        generate(model, **{"input_ids": PROMPT, "max_new_tokens": 4, **arguments})  # type: ignore[arg-type]


def test_logits_that_are_not_numbers_are_an_error() -> None:
    damaged = tiny_model("llama")
    with torch.no_grad():
        damaged.model.norm.weight[0] = torch.nan
    with pytest.raises(PolicyQuantError, match="logits hold NaN"):
        next(generate(damaged, PROMPT, max_new_tokens=1))
