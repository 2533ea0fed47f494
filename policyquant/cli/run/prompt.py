"""The prompt as the model reads it: token ids that fit its vocabulary and its positions."""

from __future__ import annotations

from dataclasses import dataclass

from policyquant.cli.run.chat_template import in_chat_template
from policyquant.cli.run.model_directory import TOKENIZER_FILE, ModelDirectory
from policyquant.cli.run.tokenizer import TextTokenizer
from policyquant.errors import PolicyQuantError
from policyquant.models.config import read_config
from policyquant.models.families import model_factory


@dataclass(frozen=True)
class Prompt:
    """A text and its tokens."""

    text: str
    """With the chat template around it, if it was asked for."""
    ids: list[int]
    room: int
    """How many tokens can follow it at most."""
    tokenizer: TextTokenizer


def read_prompt(directory: ModelDirectory, text: str, *, chat: bool) -> Prompt:
    """A prompt for the model in a directory.

    Raises:
        PolicyQuantError: there is no such model here, the tokenizer or the chat template is damaged, or the prompt is
            empty, too long, or made of tokens that the model does not have.
    """
    model_factory(directory.config)
    sizes = read_config(directory.config)
    tokenizer = TextTokenizer(directory.tokenizer, directory.file(TOKENIZER_FILE))
    if chat:
        text = in_chat_template(directory, text)
    # A template writes special tokens itself.
    ids = tokenizer.encode(text, add_special_tokens=not chat)
    if not ids:
        raise PolicyQuantError("the prompt has no tokens; give a text to continue")
    outside = next((token for token in ids if token >= sizes.vocab_size), None)
    if outside is not None:
        raise PolicyQuantError(
            f"{directory.file(TOKENIZER_FILE)}: the prompt has the token {outside} ({tokenizer.token(outside)!r}); by"
            f" config.json the model has tokens 0 … {sizes.vocab_size - 1:,}, so it is another model's tokenizer"
        )
    # What is written last is never read, and needs no position.
    room = sizes.max_position_embeddings - len(ids) + 1
    if room < 1:
        raise PolicyQuantError(
            f"the prompt has {len(ids):,} tokens; the model reads at most {sizes.max_position_embeddings:,}"
            " (max_position_embeddings of config.json)"
        )
    return Prompt(text, ids, room, tokenizer)
