"""PLaMo's vocabulary: the tokens with the largest sum of scores, and bytes for the rest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.llm.tiny import metadata, write_model
from weft.errors import TokenizerError
from weft.frontends.gguf import open_gguf
from weft.llm.tokenizers.tokenizer import Tokenizer

SCORES = {"a": -3.0, "b": -3.0, "ab": -4.5, "ba": -5.0, "aba": -8.0, "abab": -9.6, "你好": -2.0,
          "好": -7.0, "dear": -2001.0}  # fmt: skip
CONTROLS = ["<|plamo:unk|>", "<|plamo:bos|>", "<|plamo:eos|>"]
BYTES = [f"<0x{b:02X}>" for b in range(256)]
TOKENS = [*CONTROLS, *BYTES, *SCORES]


def make(folder: Path, tokens: list[str] = TOKENS, scores: dict[str, float] = SCORES) -> Tokenizer:
    types = [2, 3, 3] + [6] * (len(tokens) - 3 - len(scores)) + [1] * len(scores)
    values = np.array([scores.get(token, 0.0) for token in tokens], np.float32)
    keys = {"model": "plamo2", "tokens": tokens, "scores": values,
            "token_type": np.array(types, np.int32)}  # fmt: skip
    meta = metadata(**{f"tokenizer.ggml.{key}": value for key, value in keys.items()})
    path = write_model(folder / "m.gguf", meta, {"x": np.zeros(1, np.float32)})
    return Tokenizer.from_gguf(open_gguf(path))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make(tmp_path_factory.mktemp("plamo"))


def names(tokenizer: Tokenizer, text: str) -> list[str]:
    return [TOKENS[i] for i in tokenizer.encode(text)]


def test_the_largest_sum(tokenizer: Tokenizer) -> None:
    assert names(tokenizer, "ababa") == ["ab", "ab", "a"]
    assert names(tokenizer, "\ufeff你好好") == ["你好", "好"]
    assert names(tokenizer, "é") == ["<0xC3>", "<0xA9>"]
    assert names(tokenizer, "dear")[0] == "<0x64>"  # it costs too much
    assert names(tokenizer, CONTROLS[1]) == [f"<0x{b:02X}>" if chr(b) not in "ab" else chr(b)
                                             for b in CONTROLS[1].encode()]  # fmt: skip


@given(text=st.text("ab", max_size=8))
def test_no_other_tokens_cost_less(tokenizer: Tokenizer, text: str) -> None:
    def best(rest: str) -> float:
        ways = (SCORES[t] + best(rest[len(t) :]) for t in SCORES if rest.startswith(t))
        return max(ways, default=0.0)

    got = sum(SCORES[name] for name in names(tokenizer, text))
    assert got == pytest.approx(best(text))


@given(text=st.text())
def test_any_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text.removeprefix("\ufeff")


def test_bytes_must_be_there(tmp_path: Path) -> None:
    few = [token for token in TOKENS if token != "<0x41>"]
    with pytest.raises(TokenizerError, match="<0x41>"):
        make(tmp_path, few)


def test_long_tokens_are_refused(tmp_path: Path) -> None:
    """Every length is tried at every place of a text, whose time would grow with its cube."""
    for n in (1024, 1025):
        scores = {"a" * n: -1.0, "a": -2.0}
        tokens = [*CONTROLS, *BYTES, *scores]
        if n == 1024:
            assert len(make(tmp_path, tokens, scores).encode("a" * n)) == 1
            continue
        with pytest.raises(TokenizerError, match="token of length 1025"):
            make(tmp_path, tokens, scores)
