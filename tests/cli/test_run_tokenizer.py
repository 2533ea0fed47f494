"""Text to tokens and back, piece by piece."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from policyquant.cli.run.tokenizer import TextStream, TextTokenizer
from policyquant.errors import SourceError
from tests.cli.run_models import NO_SUCH_SPECIAL_TOKEN, byte_tokenizer

BYTES = TextTokenizer(byte_tokenizer().to_str().encode(), "tokenizer.json")


def byte_fallback() -> TextTokenizer:
    """Bytes as SentencePiece models fall back to them, and a word with a blank before it."""
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"▁word": 256}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<0x00>"))
    blank = decoders.Replace("▁", " ")
    tokenizer.decoder = decoders.Sequence([blank, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return TextTokenizer(tokenizer.to_str().encode(), "tokenizer.json")


def streamed(tokenizer: TextTokenizer, ids: list[int], prompt: list[int] | None = None) -> list[str]:
    stream = TextStream(tokenizer, prompt or [])
    return [*map(stream.push, ids), stream.rest()]


@given(st.text())
def test_the_pieces_are_the_text(text: str) -> None:
    assert "".join(streamed(BYTES, BYTES.encode(text, add_special_tokens=False))) == text


@given(st.lists(st.integers(0, 255)))
def test_bytes_that_are_no_text_do_no_harm(ids: list[int]) -> None:
    assert len("".join(streamed(BYTES, ids))) <= len(ids)


@pytest.mark.parametrize("tokenizer", [BYTES, byte_fallback()], ids=["byte level", "byte fallback"])
def test_a_character_appears_when_it_is_whole(tokenizer: TextTokenizer) -> None:
    ids = list("é🙂".encode()) if tokenizer is not BYTES else BYTES.encode("é🙂", add_special_tokens=False)
    assert streamed(tokenizer, ids) == ["", "é", "", "", "", "🙂", ""]


def test_what_never_becomes_whole_is_shown_at_the_end() -> None:
    half = BYTES.encode("a🙂", add_special_tokens=False)[:3]
    assert streamed(BYTES, half) == ["a", "", "", "\ufffd"]


def test_what_never_becomes_whole_is_not_waited_for() -> None:
    ids = [byte_tokenizer().token_to_id("ÿ")] * 20
    pieces = streamed(BYTES, ids)
    assert "".join(pieces) == "\ufffd" * 20
    assert any(pieces[:10])


def test_the_blank_before_the_first_word_is_kept() -> None:
    tokenizer = byte_fallback()
    assert streamed(tokenizer, [256, 256], prompt=[256]) == [" word", " word", ""]


def test_settings_of_a_training_run_do_not_cut_a_prompt() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=9)
    read = TextTokenizer(tokenizer.to_str().encode(), "tokenizer.json")
    assert len(read.encode("abcd", add_special_tokens=True)) == 4


def damaged(**changes: Any) -> bytes:
    return json.dumps({**json.loads(byte_tokenizer().to_str()), **changes}).encode()


@pytest.mark.parametrize("data", [b"", b"\x00\xff", b"[" * 100_000, damaged(model={"type": "BPE"})])
def test_a_damaged_file_is_told(data: bytes) -> None:
    with pytest.raises(SourceError, match=r"^tokenizer\.json: no tokenizer that can be read: "):
        TextTokenizer(data, "tokenizer.json")


def test_a_file_on_which_the_library_panics_is_told() -> None:
    tokenizer = TextTokenizer(damaged(post_processor=NO_SUCH_SPECIAL_TOKEN), "tokenizer.json")
    with pytest.raises(SourceError, match="cannot be turned into tokens"):
        tokenizer.encode("a", add_special_tokens=True)
