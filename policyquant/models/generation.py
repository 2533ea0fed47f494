"""Tokens one after another: each is the likeliest, or drawn from the model's distribution."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

import torch

from policyquant.errors import PolicyQuantError
from policyquant.models.decoder import DecoderForCausalLM


def generate(
    model: DecoderForCausalLM,
    input_ids: torch.Tensor | Sequence[int],
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_k: int | None = None,
    seed: int | None = None,
    eos_token_ids: Collection[int] = (),
) -> Iterator[int]:
    """Continue one prompt, with KV caches, and hand out each token as soon as it is known.

    Args:
        model: what gives the logits.
        input_ids: the prompt, [T] or [1, T].
        max_new_tokens: how many tokens to make at most.
        temperature: what logits are divided by before a token is drawn; 0 takes the likeliest token instead.
        top_k: draw from the `top_k` likeliest tokens only.
        seed: makes draws repeatable; without it they come from torch's global generator.
        eos_token_ids: tokens that end the text; the one that did is the last that is handed out.

    Raises:
        PolicyQuantError: an argument is out of its range, the prompt is no token ids, is empty, is more than one or
            holds ids outside of the vocabulary (all at once, at the call), or the logits hold NaN (at the token in
            question).
    """
    prompt = _prompt(model, input_ids)
    limit: object = max_new_tokens
    if not isinstance(limit, int) or limit < 0:
        raise PolicyQuantError(f"max_new_tokens must be a whole number of at least 0, found {limit!r}")
    if not (temperature >= 0 and math.isfinite(temperature)):
        raise PolicyQuantError(f"temperature must be finite and at least 0, found {temperature}")
    if top_k is not None and top_k < 1:
        raise PolicyQuantError(f"top_k must be at least 1, found {top_k}")
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return _continue(model, prompt, max_new_tokens, temperature, top_k, generator, frozenset(eos_token_ids))


def _prompt(model: DecoderForCausalLM, input_ids: torch.Tensor | Sequence[int]) -> torch.Tensor:
    """The prompt as int64 [1, T], where the model is."""
    try:
        given = torch.as_tensor(input_ids)
    except (TypeError, ValueError, RuntimeError):
        raise _no_ids(f"{type(input_ids).__name__} {input_ids!r:.80}") from None
    if given.numel() and (given.is_floating_point() or given.is_complex() or given.dtype == torch.bool):
        raise _no_ids(str(given.dtype))
    ids = given.to(model.model.norm.weight.device, torch.int64)
    if ids.dim() == 1:
        ids = ids[None]
    if ids.dim() != 2 or ids.shape[0] != 1 or ids.shape[1] == 0:
        raise PolicyQuantError(f"input_ids must be one prompt of at least one token, found shape {list(ids.shape)}")
    vocabulary = model.model.embed_tokens.num_embeddings
    outside = ids[(ids < 0) | (ids >= vocabulary)]
    if outside.numel():
        raise PolicyQuantError(f"input_ids must be in 0 … {vocabulary - 1}, found {int(outside[0])}")
    return ids


def _no_ids(found: str) -> PolicyQuantError:
    return PolicyQuantError(f"input_ids must be token ids, whole numbers that a tokenizer makes of text; found {found}")


def _continue(
    model: DecoderForCausalLM,
    prompt: torch.Tensor,
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    generator: torch.Generator | None,
    ends: frozenset[int],
) -> Iterator[int]:
    if max_new_tokens == 0:
        return
    # The last token is handed out and never read.
    length = prompt.shape[1] + max_new_tokens - 1
    # The mode is left before each token is handed out: it would reach into the code that reads them.
    with torch.inference_mode():
        caches = model.new_caches(1, length)
    ids = prompt
    for _ in range(max_new_tokens):
        with torch.inference_mode():
            logits = model(ids, caches, last_only=True)[0, -1]
            token = _choose(logits, temperature, top_k, generator)
            ids = torch.full((1, 1), token, dtype=torch.int64, device=prompt.device)
        yield token
        if token in ends:
            return


def _choose(logits: torch.Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None) -> int:
    """One token by the logits [vocabulary]; drawn on the CPU, so that a seed means the same everywhere."""
    if bool(logits.isnan().any()):
        raise PolicyQuantError("the model's logits hold NaN; a scale or a weight of one of its layers is damaged")
    if temperature == 0:
        return int(logits.argmax())
    exact = logits.to("cpu", torch.float32)
    # The largest logit becomes 0, so that a tiny temperature cannot overflow.
    exact = (exact - exact.max()) / temperature
    kept, tokens = exact.topk(min(top_k or exact.numel(), exact.numel()))
    return int(tokens[torch.multinomial(kept.softmax(-1), 1, generator=generator)])
