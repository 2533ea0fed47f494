"""What the model writes, shown as it is made, and how fast it was."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from policyquant.cli.run.prompt import Prompt
from policyquant.cli.run.tokenizer import TextStream
from policyquant.models.generation import generate

if TYPE_CHECKING:
    from policyquant.cli.run.report import Sampling
    from policyquant.models.decoder import DecoderForCausalLM

Ended = Literal["end token", "max new tokens", "max positions"]


@dataclass
class Written:
    """A continuation."""

    ids: list[int]
    text: str
    ended: Ended
    prompt_seconds: float
    """Until the first token was there."""
    token_seconds: float
    """Until the last was there after that."""


def write_text(
    model: DecoderForCausalLM,
    prompt: Prompt,
    count: int,
    sampling: Sampling,
    ends: frozenset[int],
    show: Callable[[str], None],
) -> Written:
    """Continue a prompt.

    Args:
        model: what writes.
        prompt: what it continues.
        count: how many tokens to make at most.
        sampling: how each is chosen.
        ends: tokens that end the text.
        show: gets each piece of text as soon as it is there.

    Raises:
        PolicyQuantError: the model's logits hold NaN.
    """
    tokens = generate(
        model,
        prompt.ids,
        max_new_tokens=count,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        seed=sampling.seed,
        eos_token_ids=ends,
    )
    stream = TextStream(prompt.tokenizer, prompt.ids)
    written = Written([], "", "max positions" if count == prompt.room else "max new tokens", 0.0, 0.0)

    def out(piece: str) -> None:
        written.text += piece
        if piece:
            show(piece)

    try:
        began = time.perf_counter()
        for token in tokens:
            seconds = time.perf_counter() - began
            if written.ids:
                written.token_seconds += seconds
            else:
                written.prompt_seconds = seconds
            written.ids.append(token)
            out(stream.push(token))
            # Showing the text is no work of the model's.
            began = time.perf_counter()
        out(stream.rest())
    except BaseException:
        if written.text:  # What is said of it, and the shell's prompt, begin in a line of their own.
            show("\n")
        raise
    if written.ids[-1] in ends:
        written.ended = "end token"
    return written
