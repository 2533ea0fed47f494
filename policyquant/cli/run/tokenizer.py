"""A model's `tokenizer.json`: text to token ids, and back token by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from policyquant.errors import PolicyQuantError, SourceError

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

        try:
            self._tokenizer = Tokenizer.from_buffer(data)
            # A file may carry the settings of a training run, which would cut a prompt short or lengthen it.
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
        except BaseException as failure:
            raise _refused(failure, f"{label}: no tokenizer that can be read") from failure
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
        try:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        except BaseException as failure:
            raise _refused(failure, f"{self._label}: the prompt cannot be turned into tokens") from failure
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, special ones left out; those that the tokenizer does not have are nothing."""
        try:
            text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        except BaseException as failure:
            raise _refused(failure, f"{self._label}: tokens cannot be turned into text") from failure
        return text

    def token(self, token_id: int) -> str:
        """What the tokenizer calls a token; its number if it does not have it."""
        found: str | None = self._tokenizer.id_to_token(token_id)
        return str(token_id) if found is None else found


def _refused(failure: BaseException, what: str) -> BaseException:
    """What to raise for a failure of the library: its errors have no class of their own, and where it panics, it
    raises what is no `Exception`. An interrupt stays one."""
    if isinstance(failure, (KeyboardInterrupt, SystemExit, GeneratorExit)):
        return failure
    reason = str(failure).partition("\n")[0]
    return SourceError(f"{what}: {reason or type(failure).__name__}")


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
