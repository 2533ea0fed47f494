"""A model's `tokenizer.json`: text to token ids, and back token by token."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Final

from policyquant.errors import PolicyQuantError, SourceError

_STANDARD_ERROR: Final = 2
"""Its descriptor, whatever `sys.stderr` is."""

_REPLACEMENT: Final = "\ufffd"
"""What bytes that are no UTF-8 (yet) are decoded to."""

_MOST_HELD: Final = 8
"""Tokens that are waited for to complete a character. One has at most 4 bytes, and each token brings at least one."""

_CONTEXT: Final = 4
"""Tokens of the prompt that are decoded with the first ones, which may begin with a blank that alone they would not
have."""


class TextTokenizer:
    """Text to token ids and back."""

    def __init__(self, data: bytes, label: str) -> None:
        """
        Args:
            data: The content of a `tokenizer.json`.
            label: What to call the file.

        Raises:
            SourceError: it is damaged, or of a kind that the installed `tokenizers` does not know.
        """
        from tokenizers import Tokenizer

        with _refusing(f"{label}: no tokenizer that can be read"):
            self._tokenizer = Tokenizer.from_buffer(data)
            # A file may carry the settings of a training run, which would cut a prompt short or lengthen it.
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
        self._label = label

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """
        Raises:
            PolicyQuantError: the text is not Unicode, or the tokenizer fails on it.
        """
        try:
            text.encode()
        except UnicodeEncodeError:
            raise PolicyQuantError("the prompt is not UTF-8") from None
        with _refusing(f"{self._label}: the prompt cannot be turned into tokens"):
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, special ones left out; those that the tokenizer does not have are nothing."""
        with _refusing(f"{self._label}: tokens cannot be turned into text"):
            text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def token(self, token_id: int) -> str:
        """What the tokenizer calls a token; its number if it does not have it."""
        found: str | None = self._tokenizer.id_to_token(token_id)
        return str(token_id) if found is None else found


@contextlib.contextmanager
def _refusing(what: str) -> Iterator[None]:
    """Make failures of the library ours: its errors have no class of their own, and a panic is no `Exception`."""
    try:
        with _without_traces():
            yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as failure:
        reason = str(failure).partition("\n")[0]
        raise SourceError(f"{what}: {reason or type(failure).__name__}") from failure


@contextlib.contextmanager
def _without_traces() -> Iterator[None]:
    """Lead the process's standard error to nowhere for a moment: the library's Rust writes there when it panics."""
    try:
        kept = os.dup(_STANDARD_ERROR)
    except OSError:  # It is closed already.
        yield
        return
    sink = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(sink, _STANDARD_ERROR)
        yield
    finally:
        os.dup2(kept, _STANDARD_ERROR)
        os.close(sink)
        os.close(kept)


class TextStream:
    """The text of tokens that come one by one. A character whose bytes are spread over tokens appears when it is
    whole."""

    def __init__(self, tokenizer: TextTokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        # What is decoded again with every token: `_context` tokens whose text is out, and those that are held back.
        self._ids = list(prompt[-_CONTEXT:])
        self._context = len(self._ids)

    def push(self, token_id: int) -> str:
        """The text that a token completes; often its own, and empty while a character is incomplete."""
        self._ids.append(token_id)
        held = len(self._ids) - self._context
        text = self._pending()
        if text.endswith(_REPLACEMENT) and held < _MOST_HELD:
            return ""
        self._ids = self._ids[self._context :]
        self._context = held
        return text

    def rest(self) -> str:
        """What is still held back at the end of the text."""
        text = self._pending() if len(self._ids) > self._context else ""
        self._context = len(self._ids)
        return text

    def _pending(self) -> str:
        known = self._tokenizer.decode(self._ids[: self._context])
        return self._tokenizer.decode(self._ids)[len(known) :]
