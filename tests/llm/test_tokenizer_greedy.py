"""RWKV's vocabulary: the longest token first, and bytes written as in Python."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.llm.vocabularies import make
from weft.llm.tokenizers.tokenizer import Tokenizer
from weft.llm.tokenizers.wpm import unescaped

BYTES = [repr(bytes((i,)))[2:-1] for i in range(256)]
WORDS = ["the", "them", " the", "th", "\\n\\n", "\\'s", "\\xe4\\xbd\\xa0", "\\xe4\\xbd", "\\\\n"]
TOKENS = ["<s>", *BYTES, *WORDS, "[PAD]"]
TYPES = {0: 3, len(TOKENS) - 1: 5}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make(tmp_path_factory.mktemp("rwkv"), "rwkv", TOKENS, TYPES)


def names(tokenizer: Tokenizer, text: str) -> list[str]:
    return [TOKENS[i] for i in tokenizer.encode(text)]


def test_the_longest_token_first(tokenizer: Tokenizer) -> None:
    assert names(tokenizer, "them the then") == ["them", " the", " the", "n"]
    assert names(tokenizer, "it's\n\n\n") == ["i", "t", "\\'s", "\\n\\n", "\\n"]
    assert names(tokenizer, "你佥") == ["\\xe4\\xbd\\xa0", "\\xe4\\xbd", "\\xa5"]
    assert names(tokenizer, "\\n") == ["\\\\n"]


def test_control_tokens_are_no_text(tokenizer: Tokenizer) -> None:
    assert names(tokenizer, "<s>[PAD]") == [*"<s>[PAD]"]
    assert tokenizer.encode("<s>a", parse_special=True) == [0, 1 + ord("a")]


def test_what_is_written_in_files() -> None:
    assert unescaped(rb"a\x80\t\\x80\'\r\n") == b"a\x80\t\\x80'\r\n"


@given(text=st.text())
def test_any_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_bytes_without_a_token(tmp_path: Path) -> None:
    few = make(tmp_path, "rwkv", ["<u>", "a", "ab"], {0: 2}, unknown_token_id=0)
    assert few.encode("abxa") == [2, 0, 1]
    none = make(tmp_path, "rwkv", ["<u>", "a", "ab"], {0: 3})
    assert none.encode("abxa") == [2, 1]
